"""How fast something runs, and how fast it could: `headrace bench decode|prefill|load` and more."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.destination import check_file, check_folder
from headrace.cli.environment import home, start_logging
from headrace.cli.meter import Meter
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.checkpoint import Shape

SHAPE = "Shape of a random checkpoint, where no model is given"

app = typer.Typer(help="Measure decoding, prompts, reading, sessions.", no_args_is_help=True)

Experts = Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens decoded in a run.")]
Text = Callable[[dict[str, Any]], str]
Progress = Callable[..., None]  # done, total, and what is being done


@dataclass(frozen=True)
class Layers:
    """What the layers of a random checkpoint look like."""

    hidden: Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)] = 2048
    width: Annotated[int, typer.Option(min=1, help="Of one expert.", rich_help_panel=SHAPE)] = 768
    experts: Experts = 128
    layers: Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)] = 4
    dtype: Annotated[
        str, typer.Option(help="bfloat16, float16 or float32.", rich_help_panel=SHAPE)
    ] = "bfloat16"

    def shape(self, top_k: int) -> Shape:
        """Raises ConfigError for one that no checkpoint has."""
        from headrace.bench.checkpoint import Shape  # noqa: PLC0415 start-up time

        return Shape(self.hidden, self.width, self.experts, top_k, self.layers, dtype=self.dtype)


@dataclass(frozen=True)
class Subject:
    """A model, or the number format of a random one; how often, and on how many cores."""

    model: Annotated[
        str | None, typer.Option(help="A model folder or `demo`; else a random checkpoint.")
    ] = None
    top_k: Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)] = 8
    kind: Annotated[
        str | None,
        typer.Option("--format", help="Q4_K, MXFP4, FP8, ...", rich_help_panel=SHAPE),
    ] = None
    repeats: options.Repeats = 5
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads that compute.")] = None


@dataclass(frozen=True)
class Output:
    """How a result is told."""

    as_json: options.Json = False
    out: Annotated[Path | None, typer.Option(help="Write the result there as JSON, too.")] = None

    def of(
        self, what: str, measure: Callable[[Progress], dict[str, Any]], text: Text | None = None
    ) -> dict[str, Any]:
        """Measures with a meter on the terminal, and tells; `text`: for people."""
        from headrace.bench.report import write  # noqa: PLC0415 start-up time

        start_logging("warning")
        if self.out is not None:
            check_file("--out", self.out, makes_folders=True)
        with Meter(what) as meter:
            result = measure(meter.show)
        if self.out is not None:
            write(self.out, result)
        told = json.dumps(result) + "\n" if self.as_json else (text or _lines)(result)
        sys.stdout.write(told)
        return result


@app.command("decode")
@options.expanded
def decode(subject: Subject, shape: Layers, output: Output, tokens: Tokens = 64) -> None:
    """Tokens per second of one stream, against what memory and cores reach in the same run."""
    from headrace.bench.decode import run  # noqa: PLC0415 start-up time

    _measure(run, subject, shape, output, tokens)


@app.command("prefill")
@options.expanded
def prefill(
    subject: Subject,
    shape: Layers,
    output: Output,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
) -> None:
    """Tokens per second of a prompt, against bandwidth and matrix rate of the same run."""
    from headrace.bench.prefill import run  # noqa: PLC0415 start-up time

    _measure(run, subject, shape, output, tokens)


@app.command("tier")
@options.expanded
def tier(
    subject: Subject,
    shape: Layers,
    output: Output,
    tokens: Tokens = 64,
    ram: Annotated[str, typer.Option(help="RAM for experts: bytes, slots or a share.")] = "50%",
    skew: Annotated[float, typer.Option(min=0, help="Experts are used by rank^-skew.")] = 1.0,
) -> None:
    """Tokens per second with a part of the experts in RAM and all of them on disk."""
    from headrace.bench.tier import run  # noqa: PLC0415 start-up time

    _measure(run, subject, shape, output, tokens, ram=ram, skew=skew)


@dataclass(frozen=True)
class FewerExperts(Layers):
    """Of layers whose experts are all timed."""

    experts: Experts = 64


@app.command("hetero")
@options.expanded
def hetero(
    shape: FewerExperts,
    output: Output,
    misses: Annotated[int, typer.Option(min=1, help="Of one layer, shared out.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Of every split.")] = 15,
    charts: Annotated[Path | None, typer.Option(help="Folder for SVG charts.")] = None,
) -> None:
    """Misses of a layer fetched or computed: every split, on emulated links of three speeds."""
    from headrace.bench.hetero import LINKS, check, run  # noqa: PLC0415 start-up time
    from headrace.bench.hetero import charts as draw  # noqa: PLC0415 start-up time
    from headrace.bench.hetero_report import text  # noqa: PLC0415 start-up time
    from headrace.planning.machine import Machine  # noqa: PLC0415 start-up time

    made = shape.shape(misses)
    check(made, misses, Machine.probe())
    if charts is not None:
        check_folder("--charts", charts)

    def measure(progress: Progress) -> dict[str, Any]:
        return run(shape=made, misses=misses, steps=steps, links=LINKS, progress=progress)

    result = output.of("measuring", measure, text)
    if charts is not None:
        for name, svg in draw(result).items():
            (charts / f"{name}.svg").write_text(svg)


@app.command("read")
@options.expanded
def read(
    shape: Layers,
    output: Output,
    model: Annotated[str | None, typer.Option(help="A model folder; else a random one.")] = None,
    repeats: options.Repeats = 5,
) -> None:
    """How fast weights are read from disk, against a plain direct read of the same bytes."""
    from headrace.bench.read import run  # noqa: PLC0415 start-up time
    from headrace.cli.model import resolve  # noqa: PLC0415 start-up time

    def measure(progress: Progress) -> dict[str, Any]:
        folder = None if model is None else resolve(model, progress)
        made = shape.shape(min(8, shape.experts))
        return run(model=folder, shape=made, repeats=repeats, home=home(), progress=progress)

    output.of("preparing", measure)


@app.command("load")
@options.expanded
def load(
    sessions: Annotated[
        str, typer.Argument(help="A file of sessions, or reasoning, coding, subagents, assistant.")
    ],
    url: Annotated[str, typer.Option(help="A server that speaks the dialect, ours or another.")],
    output: Output,
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
) -> None:
    """Replay sessions of agents: time to the first token, decode rate, tokens from the cache."""
    from headrace.bench.load import replay  # noqa: PLC0415 start-up time
    from headrace.bench.load_client import Target  # noqa: PLC0415 start-up time
    from headrace.bench.load_report import chart, text  # noqa: PLC0415 start-up time
    from headrace.bench.load_sessions import read_sessions, write_sessions  # noqa: PLC0415
    from headrace.bench.load_workloads import WORKLOADS  # noqa: PLC0415 start-up time

    for option, file in (("--svg", svg), ("--save", save)):
        if file is not None:
            check_file(option, file)
    made = WORKLOADS.get(sessions)
    played = read_sessions(Path(sessions)) if made is None else made(seed, scale)
    if save is not None:
        write_sessions(save, played)
    target = Target(url, model=model, api_key=api_key, dialect=dialect)

    def measure(progress: Progress) -> dict[str, Any]:
        return replay(played, target, timeout_s=timeout, progress=_of(progress, "turns"))

    drawn = chart(output.of("replaying", measure, text))
    if svg is not None and drawn is not None:
        svg.write_text(drawn)


@app.command("soak")
@options.expanded
def soak(
    url: Annotated[str, typer.Option(help="A running headrace server.")],
    output: Output,
    minutes: Annotated[float, typer.Option(min=0.1)] = 30.0,
    conversations: Annotated[int, typer.Option(min=1, help="At once.")] = 8,
    pid: Annotated[int | None, typer.Option(help="Of the server: its memory is watched.")] = None,
    fill: Annotated[
        bool, typer.Option("--fill", help="First fill what a server keeps: words and answers.")
    ] = False,
) -> None:
    """Conversations whose clients hang up at random; then nothing may be held. Exit 1 otherwise."""
    from headrace.bench.load_client import Target  # noqa: PLC0415 start-up time
    from headrace.bench.soak import soak as run  # noqa: PLC0415 start-up time

    def measure(progress: Progress) -> dict[str, Any]:
        return run(
            Target(url),
            seconds=60 * minutes,
            conversations=conversations,
            pid=pid,
            fill=fill,
            progress=_of(progress, "seconds"),
        )

    result = output.of("soaking", measure, lambda found: f"{found}\n")
    if any(result["left_behind"].values()):
        raise typer.Exit(1)


def _measure(
    run: Callable[..., dict[str, Any]],
    subject: Subject,
    shape: Layers,
    output: Output,
    tokens: int,
    **more: Any,
) -> None:
    """One benchmark of an engine on the subject."""
    from headrace.cli.model import resolve  # noqa: PLC0415 start-up time

    if subject.model is not None and subject.kind is not None:
        raise ConfigError("--format beside --model", fix="give one: a model has its own format")

    def measure(progress: Progress) -> dict[str, Any]:
        return run(
            model=None if subject.model is None else resolve(subject.model, progress),
            shape=shape.shape(subject.top_k),
            kind=subject.kind,
            tokens=tokens,
            repeats=subject.repeats,
            threads=subject.threads,
            home=home(),
            progress=progress,
            **more,
        )

    output.of("preparing", measure)


def _of(progress: Progress, unit: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(done, total, unit)


def _lines(result: dict[str, Any]) -> str:
    return "".join(f"{name:<36} {value}\n" for name, value in _flat(result))


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and values, for people."""
    rows: list[tuple[str, str]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, f"{value:.4g}" if isinstance(value, float) else str(value)))
    return rows
