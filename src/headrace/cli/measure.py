"""`headrace measure`: what link and CPU really carry on a model's own experts; kept for `serve`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import options
from headrace.cli.environment import home, start_logging
from headrace.cli.meter import Meter
from headrace.cli.model import resolve as folder_of
from headrace.config import EngineConfig
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.planning.facts import ModelFacts
    from headrace.planning.profile import BandwidthProfile, ProfileRow

MISSES = range(1, 9)
NO_DEVICE = (
    "there is no device but the CPU here: measured is the emulated one, a GPU made of RAM,\n"
    "which is what --device emulated will use\n"
)


def measure(
    model: options.Model = options.DEFAULT_MODEL,
    device: options.Device = None,
    dtype: options.Dtype = None,
    config: options.ConfigFile = None,
    settings: options.Settings = None,
    as_json: options.Json = False,
) -> None:
    """Measure link and CPU on this model's experts, each alone and both at once."""
    start_logging("warning")
    made = options.engine_config(config, settings, device=device, dtype=dtype)
    if made.emulated.clock == "virtual":
        raise ConfigError(
            "emulated.clock = 'virtual': its times are declared", expected="real, to be measured"
        )
    if made.device == "cpu":
        raise ConfigError(
            "--device cpu: the CPU alone has no link to measure", expected="auto or emulated"
        )
    if made.device == "auto":
        sys.stderr.write(NO_DEVICE)
        made = made.with_keys({"device": "emulated"})
    with Meter("preparing") as meter:
        folder = folder_of(model, meter.show)
        profile, facts, path = _measured(folder, made, meter)
    profile.save(path)
    if as_json:
        report = {"model": model, "path": str(path), **_as_json(profile, facts)}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        kept = f"kept in {path}\nfor {profile.fingerprint}"
        sys.stdout.write(f"{_as_text(profile, facts)}\n\n{kept}\n")


def _measured(
    folder: Path, config: EngineConfig, meter: Meter
) -> tuple[BandwidthProfile, ModelFacts, Path]:
    from headrace import _native  # noqa: PLC0415 start-up time
    from headrace.engine.opening import open_engine  # noqa: PLC0415 start-up time
    from headrace.planning.machine import Machine  # noqa: PLC0415 start-up time
    from headrace.planning.profile import layer_kinds, profile_path  # noqa: PLC0415 start-up time

    machine = Machine.probe(_native.isas())
    opening = open_engine(folder, config)
    facts = opening.source.facts
    from headrace.engine.measuring import measure_profile  # noqa: PLC0415 torch takes seconds

    stages = 3 * len(layer_kinds(facts))
    done = 0

    def progress(stage: str) -> None:
        nonlocal done
        meter.show(done, stages, stage)
        done += 1

    profile = measure_profile(opening, machine, reading=meter.show, progress=progress)
    return profile, facts, profile_path(home(), facts)


def _tables(row: ProfileRow, row_bytes: int) -> dict[str, list[int]]:
    """q[m] for m = 1..8: what ends link and host together, and what `auto` makes of it."""
    from headrace.planning.quotas import quota_table  # noqa: PLC0415 start-up time

    return {
        fill: list(quota_table(fill, row, row_bytes, MISSES[-1])[1:])
        for fill in ("balanced", "paper", "auto")
    }


def _as_json(profile: BandwidthProfile, facts: ModelFacts) -> dict[str, Any]:
    from headrace.planning.profile import layer_kinds  # noqa: PLC0415 start-up time

    sizes = layer_kinds(facts)
    rows = {
        kind: asdict(row) | {"row_bytes": sizes[kind], "q": _tables(row, sizes[kind])}
        for kind, row in profile.rows.items()
    }
    return {"fingerprint": profile.fingerprint, "rows": rows}


def _as_text(profile: BandwidthProfile, facts: ModelFacts) -> str:
    from headrace.cli.ctl_text import table  # noqa: PLC0415 start-up time
    from headrace.planning.profile import layer_kinds  # noqa: PLC0415 start-up time

    sizes, parts = layer_kinds(facts), []
    for kind, row in profile.rows.items():
        rates = [
            ("", "alone", "beside the other", "fixed cost"),
            ("  link", *_rates(row.link, row.link_shared, row.fill_s)),
            ("  host", *_rates(row.host, row.host_shared, row.handoff_s)),
        ]
        quotas = [("  misses", *(str(m) for m in MISSES))]
        for fill, q in _tables(row, sizes[kind]).items():
            name = "q*" if fill == "balanced" else f"fill = {fill}"
            quotas.append((f"  {name}", *(str(n) for n in q)))
        parts.append(f"{kind}\n{table(rates)}\n{table(quotas)}")
    return "\n\n".join(parts)


def _rates(alone: float, shared: float, fixed_s: float) -> tuple[str, str, str]:
    return f"{alone / 1e9:.2f} GB/s", f"{shared / 1e9:.2f} GB/s", f"{1e6 * fixed_s:.0f} us"
