"""`headrace plan`: what would run, and how fast, from headers alone. Imports no torch."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options
from headrace.cli.environment import home
from headrace.cli.meter import Meter
from headrace.cli.model import resolve as folder_of
from headrace.config import EngineConfig
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.models.source import ModelSource
    from headrace.planning.facts import ModelFacts
    from headrace.planning.forecast import Forecast


def plan(
    model: options.Model = options.DEFAULT_MODEL,
    machine: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Another machine: a preset or a TOML file."),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            metavar="TOKENS", min=1, help="Predict at this length, and hold it; may be repeated."
        ),
    ] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    config: options.ConfigFile = None,
    settings: options.Settings = None,
    as_json: options.Json = False,
) -> None:
    """Show what would run, where experts would lie, and how fast it should be."""
    from headrace.models.source import open_model  # noqa: PLC0415 start-up time
    from headrace.planning import forecast  # noqa: PLC0415 start-up time

    lengths = context or []
    made = options.engine_config(
        config, settings, device=device, dtype=dtype, context=max(lengths, default=None)
    )
    with Meter("preparing") as meter:
        source = open_model(folder_of(model, meter.show))
    if machine is None:
        shown = _here(made, source, lengths)
    else:
        shown = _there(made, source.facts, machine, lengths)
    if as_json:
        sys.stdout.write(json.dumps({"model": model} | forecast.as_json(shown)) + "\n")
    else:
        sys.stdout.write(f"{model} {forecast.as_text(shown)}\n")


def _here(config: EngineConfig, source: ModelSource, contexts: list[int]) -> Forecast:
    from headrace import _native  # noqa: PLC0415 start-up time
    from headrace.planning import resolve  # noqa: PLC0415 start-up time
    from headrace.planning.forecast import forecast  # noqa: PLC0415 start-up time
    from headrace.planning.machine import Machine  # noqa: PLC0415 start-up time
    from headrace.planning.profile import find_profile, profile_path  # noqa: PLC0415 start-up time
    from headrace.weights.probe import probe  # noqa: PLC0415 start-up time

    facts = source.facts
    choice = resolve.resolve_device(config, facts)
    machine = resolve.equip(config, Machine.probe(_native.isas()), facts, choice)
    mark = resolve.profile_mark(config, machine, facts)
    found = find_profile(profile_path(home(), facts), mark)
    made = resolve.plan_for(config, machine, facts, choice, found)
    if made.tier is not None:
        machine = replace(machine, disk=probe(source.rows()).rate or None)
    bytes_each = resolve.kv_element_bytes(made.dtype.value)
    costs = resolve.costs_of(made.experts, machine, facts, bytes_each, found, made.tier)
    return forecast(machine.name, made, costs, contexts)


def _there(config: EngineConfig, facts: ModelFacts, name: str, contexts: list[int]) -> Forecast:
    from headrace.planning import resolve  # noqa: PLC0415 start-up time
    from headrace.planning.forecast import forecast  # noqa: PLC0415 start-up time
    from headrace.planning.machines import declared  # noqa: PLC0415 start-up time
    from headrace.planning.placement import Choice  # noqa: PLC0415 start-up time

    machine = declared(name).machine
    if config.device == "emulated":
        raise ConfigError(
            "--machine with device = 'emulated'",
            expected="one of them",
            fix="--set emulated.machine=NAME emulates that machine on this one",
        )
    assert machine.device is not None
    choice = Choice("cuda", f"{machine.device.name}, as declared")
    if config.device == "cpu":
        choice = Choice("cpu", "asked for")
    elif not facts.rows:
        raise ConfigError(
            "a model without experts on a declared device",
            expected="a Mixture-of-Experts model",
            fix="--device cpu",
        )
    made = resolve.plan_for(config, machine, facts, choice)
    bytes_each = resolve.kv_element_bytes(made.dtype.value)
    return forecast(
        machine.name,
        made,
        resolve.costs_of(made.experts, machine, facts, bytes_each, tier=made.tier),
        contexts,
    )
