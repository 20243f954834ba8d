"""How fast something runs, and how fast it could: `headrace bench decode|prefill|load` and more."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli import options
from headrace.cli.environment import start_logging

SHAPE = "Shape of a random checkpoint, where no model is given"

app = typer.Typer(help="Measure decoding, prompts, reading, sessions.", no_args_is_help=True)

ModelFolder = Annotated[
    str | None, typer.Option("--model", help="A model folder or `demo`; else a random checkpoint.")
]
Hidden = Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)]
Width = Annotated[int, typer.Option(min=1, help="Of one expert.", rich_help_panel=SHAPE)]
Experts = Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)]
TopK = Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)]
Layers = Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)]
Dtype = Annotated[str, typer.Option(help="bfloat16, float16 or float32.", rich_help_panel=SHAPE)]
Repeats = Annotated[int, typer.Option(min=1, help="Runs; the median is reported.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads that compute.")]
Out = Annotated[Path | None, typer.Option(help="Write the result there as JSON, too.")]


class Run(NamedTuple):
    model: str | None
    tokens: int
    repeats: int
    threads: int | None


@app.command("decode")
def decode(
    model: ModelFolder = None,
    hidden: Hidden = 2048,
    width: Width = 768,
    experts: Experts = 128,
    top_k: TopK = 8,
    layers: Layers = 4,
    dtype: Dtype = "bfloat16",
    kind: Annotated[
        str | None,
        typer.Option("--format", help="Q4_K, MXFP4, FP8, ...", rich_help_panel=SHAPE),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens decoded in a run.")] = 64,
    repeats: Repeats = 5,
    threads: Threads = None,
    as_json: options.Json = False,
    out: Out = None,
) -> None:
    """Tokens per second of one stream, against what memory and cores reach in the same run."""
    from headrace.bench.checkpoint import Shape  # noqa: PLC0415 start-up time
    from headrace.bench.decode import run as measure  # noqa: PLC0415 start-up time

    shape = Shape(hidden, width, experts, top_k, layers, dtype=dtype)
    run = Run(model, tokens, repeats, threads)
    _report(partial(measure, kind=kind), run, shape, as_json=as_json, out=out)


@app.command("prefill")
def prefill(
    model: ModelFolder = None,
    hidden: Hidden = 2048,
    width: Width = 768,
    experts: Experts = 128,
    top_k: TopK = 8,
    layers: Layers = 4,
    dtype: Dtype = "bfloat16",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    repeats: Repeats = 5,
    threads: Threads = None,
    as_json: options.Json = False,
    out: Out = None,
) -> None:
    """Tokens per second of a prompt, against bandwidth and matrix rate of the same run."""
    from headrace.bench.checkpoint import Shape  # noqa: PLC0415 start-up time
    from headrace.bench.prefill import run as measure  # noqa: PLC0415 start-up time

    shape = Shape(hidden, width, experts, top_k, layers, dtype=dtype)
    run = Run(model, tokens, repeats, threads)
    _report(measure, run, shape, as_json=as_json, out=out)


@app.command("hetero")
def hetero(
    hidden: Hidden = 2048,
    width: Width = 768,
    experts: Experts = 64,
    layers: Layers = 4,
    dtype: Dtype = "bfloat16",
    misses: Annotated[int, typer.Option(min=1, help="Of one layer, shared out.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Of every split.")] = 15,
    charts: Annotated[Path | None, typer.Option(help="Folder for SVG charts.")] = None,
    as_json: options.Json = False,
    out: Out = None,
) -> None:
    """Misses of a layer fetched or computed: every split, on emulated links of three speeds."""
    from headrace.bench.checkpoint import Shape  # noqa: PLC0415 start-up time
    from headrace.bench.hetero import LINKS, run  # noqa: PLC0415 start-up time
    from headrace.bench.hetero import charts as draw  # noqa: PLC0415 start-up time
    from headrace.bench.hetero_report import text  # noqa: PLC0415 start-up time
    from headrace.bench.report import write  # noqa: PLC0415 start-up time
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time

    start_logging("warning")
    shape = Shape(hidden, width, experts, misses, layers, dtype=dtype)
    with Meter("measuring") as meter:
        result = run(shape=shape, misses=misses, steps=steps, links=LINKS, progress=meter.show)
    if out is not None:
        write(out, result)
    if charts is not None:
        for name, svg in draw(result).items():
            (charts / f"{name}.svg").write_text(svg)
    sys.stdout.write(json.dumps(result) + "\n" if as_json else text(result))


@app.command("read")
def read(
    model: ModelFolder = None,
    hidden: Hidden = 2048,
    width: Width = 768,
    experts: Experts = 128,
    layers: Layers = 4,
    dtype: Dtype = "bfloat16",
    repeats: Repeats = 5,
    as_json: options.Json = False,
    out: Out = None,
) -> None:
    """How fast weights are read from disk, against a plain direct read of the same bytes."""
    from headrace.bench.checkpoint import Shape  # noqa: PLC0415 start-up time
    from headrace.bench.read import run  # noqa: PLC0415 start-up time
    from headrace.bench.report import write  # noqa: PLC0415 start-up time
    from headrace.cli.environment import home  # noqa: PLC0415 start-up time
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time
    from headrace.cli.model import resolve  # noqa: PLC0415 start-up time

    start_logging("warning")
    with Meter("preparing") as meter:
        result = run(
            model=None if model is None else resolve(model, meter.show),
            shape=Shape(hidden, width, experts, min(8, experts), layers, dtype=dtype),
            repeats=repeats,
            home=home(),
            progress=meter.show,
        )
    if out is not None:
        write(out, result)
    _show(result, as_json=as_json)


@app.command("load")
def load(
    sessions: Annotated[
        str, typer.Argument(help="A file of sessions, or reasoning, coding, subagents, assistant.")
    ],
    url: Annotated[str, typer.Option(help="A server that speaks the dialect, ours or another.")],
    dialect: Annotated[
        str, typer.Option(help="chat, messages (Anthropic) or responses (OpenAI).")
    ] = "chat",
    scale: Annotated[
        float, typer.Option(min=0.001, help="Of the sizes of made-up sessions.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of made-up sessions.")] = 1,
    model: Annotated[str | None, typer.Option(help="Its name there; else the first.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Of the server.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds without data.")] = 3600.0,
    svg: Annotated[Path | None, typer.Option(help="Write a chart there.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the sessions there, too.")] = None,
    as_json: options.Json = False,
    out: Out = None,
) -> None:
    """Replay sessions of agents: time to the first token, decode rate, tokens from the cache."""
    from headrace.bench.load import replay  # noqa: PLC0415 start-up time
    from headrace.bench.load_client import Target  # noqa: PLC0415 start-up time
    from headrace.bench.load_report import chart, text  # noqa: PLC0415 start-up time
    from headrace.bench.load_sessions import read_sessions, write_sessions  # noqa: PLC0415
    from headrace.bench.load_workloads import WORKLOADS  # noqa: PLC0415 start-up time
    from headrace.bench.report import write  # noqa: PLC0415 start-up time
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time

    start_logging("warning")
    made = WORKLOADS.get(sessions)
    played = read_sessions(Path(sessions)) if made is None else made(seed, scale)
    if save is not None:
        write_sessions(save, played)
    target = Target(url, model=model, api_key=api_key, dialect=dialect)
    with Meter("replaying") as meter:
        result = replay(
            played,
            target,
            timeout_s=timeout,
            progress=lambda done, total: meter.show(done, total, "turns"),
        )
    if out is not None:
        write(out, result)
    drawn = chart(result)
    if svg is not None and drawn is not None:
        svg.write_text(drawn)
    sys.stdout.write(json.dumps(result) + "\n" if as_json else text(result))


@app.command("tier")
def tier(
    model: ModelFolder = None,
    hidden: Hidden = 2048,
    width: Width = 768,
    experts: Experts = 128,
    top_k: TopK = 8,
    layers: Layers = 4,
    dtype: Dtype = "bfloat16",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens decoded in a run.")] = 64,
    ram: Annotated[str, typer.Option(help="RAM for experts: bytes, slots or a share.")] = "50%",
    skew: Annotated[float, typer.Option(min=0, help="Experts are used by rank^-skew.")] = 1.0,
    repeats: Repeats = 5,
    threads: Threads = None,
    as_json: options.Json = False,
    out: Out = None,
) -> None:
    """Tokens per second with a part of the experts in RAM and all of them on disk."""
    from headrace.bench.checkpoint import Shape  # noqa: PLC0415 start-up time
    from headrace.bench.tier import run as measure  # noqa: PLC0415 start-up time

    shape = Shape(hidden, width, experts, top_k, layers, dtype=dtype)
    run = Run(model, tokens, repeats, threads)
    some = partial(measure, ram=ram, skew=skew)
    _report(some, run, shape, as_json=as_json, out=out)


@app.command("soak")
def soak(
    url: Annotated[str, typer.Option(help="A running headrace server.")],
    minutes: Annotated[float, typer.Option(min=0.1)] = 30.0,
    conversations: Annotated[int, typer.Option(min=1, help="At once.")] = 8,
    pid: Annotated[int | None, typer.Option(help="Of the server: its memory is watched.")] = None,
    as_json: options.Json = False,
    out: Out = None,
) -> None:
    """Conversations whose clients hang up at random; then nothing may be held. Exit 1 otherwise."""
    from headrace.bench.load_client import Target  # noqa: PLC0415 start-up time
    from headrace.bench.report import write  # noqa: PLC0415 start-up time
    from headrace.bench.soak import soak as run  # noqa: PLC0415 start-up time
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time

    start_logging("warning")
    with Meter("soaking") as meter:
        result = run(
            Target(url),
            url,
            seconds=60 * minutes,
            conversations=conversations,
            pid=pid,
            progress=lambda done, total: meter.show(done, total, "seconds"),
        )
    if out is not None:
        write(out, result)
    sys.stdout.write(json.dumps(result) + "\n" if as_json else f"{result}\n")
    if any(result["left_behind"].values()):
        raise typer.Exit(1)


def _report(
    measure: Callable[..., dict[str, Any]],
    run: Run,
    shape: object,
    *,
    as_json: bool,
    out: Path | None,
) -> None:
    from headrace.bench.report import write  # noqa: PLC0415 start-up time
    from headrace.cli.environment import home  # noqa: PLC0415 start-up time
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time
    from headrace.cli.model import resolve  # noqa: PLC0415 start-up time

    start_logging("warning")
    with Meter("preparing") as meter:
        result = measure(
            model=None if run.model is None else resolve(run.model, meter.show),
            shape=shape,
            tokens=run.tokens,
            repeats=run.repeats,
            threads=run.threads,
            home=home(),
            progress=meter.show,
        )
    if out is not None:
        write(out, result)
    _show(result, as_json=as_json)


def _show(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        sys.stdout.write("".join(f"{name:<36} {value}\n" for name, value in _flat(result)))


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and values, for people."""
    rows: list[tuple[str, str]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, f"{value:.4g}" if isinstance(value, float) else str(value)))
    return rows
