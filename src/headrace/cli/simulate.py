"""`headrace simulate`: cache policies over recorded or made-up routing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options
from headrace.cli.destination import check_file
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.planning.profile import ProfileRow
    from headrace.planning.trace import RoutingTrace
    from headrace.sim.replay import Outcome, ReplayStep

Predictions = dict[str, dict[float, dict[str, "Outcome"]]]


def simulate(
    trace: Annotated[
        Path | None, typer.Argument(help="A routing trace that `headrace` recorded.")
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Made-up routing instead, in the shape of a model."),
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option(help="Predict step times: a preset, a TOML file or `all`; may be repeated."),
    ] = None,
    capacity: Annotated[
        list[float] | None,
        typer.Option(metavar="PERCENT", help="Share of the experts that fits; may be repeated."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Only these policies; may be repeated.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps, with --synthetic.")] = 512,
    seed: Annotated[int, typer.Option(help="Of the made-up routing.")] = 0,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a chart of the miss rates as SVG.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the made-up routing as a trace.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Refuse a trace of another model than this folder or `demo`.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Replay decode routing through cache policies, against the best that is possible."""
    from headrace.planning.policies import POLICIES  # noqa: PLC0415 start-up time
    from headrace.sim import replay, report  # noqa: PLC0415 start-up time

    _check_files(chart, save, made_up=synthetic is not None)
    routing = _routing(trace, synthetic, steps, seed)
    if model is not None:
        _check_model(routing, model)
    if save is not None:
        routing.save(save)
    shares = [percent / 100 for percent in capacity] if capacity else list(replay.CAPACITIES)
    rows = _machines(machine or [])
    prepared = replay.prepare(routing)
    outcomes = replay.compare(
        routing.model, prepared, shares, policy or tuple(POLICIES), progress=_note
    )
    predictions = _predict(routing, prepared, rows, shares)
    if chart is not None:
        chart.parent.mkdir(parents=True, exist_ok=True)
        chart.write_text(report.miss_chart(outcomes, routing.model.label()))
    if as_json:
        print(json.dumps(report.as_json(routing, outcomes, predictions)))  # noqa: T201
        return
    parts = [report.summary(routing), report.miss_table(outcomes)]
    parts += [report.time_table(name, table) for name, table in predictions.items()]
    print("\n\n".join(parts))  # noqa: T201


def _check_files(chart: Path | None, save: Path | None, *, made_up: bool) -> None:
    if save is not None and not made_up:
        raise ConfigError(
            "--save with a recorded trace", expected="--synthetic MODEL", fix="copy it"
        )
    for option, file in (("--chart", chart), ("--save", save)):
        if file is not None:
            check_file(option, file, makes_folders=True)


def _routing(trace: Path | None, synthetic: str | None, steps: int, seed: int) -> RoutingTrace:
    from headrace.planning.trace import RoutingTrace  # noqa: PLC0415 start-up time
    from headrace.sim import synthetic as made_up  # noqa: PLC0415 start-up time

    if (trace is None) == (synthetic is None):
        found = "neither a trace nor --synthetic" if trace is None else "a trace and --synthetic"
        raise ConfigError(
            found,
            expected="one of them",
            fix="headrace simulate TRACE, or headrace simulate --synthetic "
            + "|".join(made_up.SHAPES),
        )
    if trace is not None:
        return RoutingTrace.load(trace)
    assert synthetic is not None
    # Sequences of 128 answers are what the generator was fitted to.
    sequences = -(-steps // 128)
    return made_up.generate(
        made_up.shape(synthetic), sequences=sequences, decode=-(-steps // sequences), seed=seed
    )


def _check_model(routing: RoutingTrace, model: str) -> None:
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time
    from headrace.cli.model import resolve  # noqa: PLC0415 start-up time
    from headrace.models.source import open_model  # noqa: PLC0415 start-up time
    from headrace.planning.trace import TraceModel  # noqa: PLC0415 start-up time

    with Meter("preparing") as meter:
        folder = resolve(model, meter.show)
    routing.expect(TraceModel.of(open_model(folder).facts))


def _machines(names: list[str]) -> dict[str, ProfileRow]:
    from headrace.planning.machines import MACHINES, declared  # noqa: PLC0415 start-up time

    if "all" in names:
        names = [*MACHINES, *(name for name in names if name != "all")]
    made = [declared(name) for name in names]
    return {machine.name: machine.row for machine in made}


def _predict(
    routing: RoutingTrace,
    steps: list[ReplayStep],
    rows: dict[str, ProfileRow],
    shares: list[float],
) -> Predictions:
    from headrace.planning.policies import DEFAULT_POLICY, POLICIES  # noqa: PLC0415 start-up time
    from headrace.sim.replay import predict  # noqa: PLC0415 start-up time

    experts = routing.model.experts
    predictions: Predictions = {}
    for name, row in rows.items():
        _note(name)
        predictions[name] = {
            share: predict(
                routing.model, steps, lambda: POLICIES[DEFAULT_POLICY](experts, {}), row, share
            )
            for share in shares
        }
    return predictions


def _note(what: str) -> None:
    """On a terminal, what is being replayed; a long trace takes a while."""
    if sys.stderr.isatty():
        sys.stderr.write(f"replaying {what}\n")
