"""Declared machines: bandwidths as somebody states them, for predictions without the machine."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError
from headrace.planning.profile import ProfileRow

GB = 1e9


@dataclass(frozen=True, slots=True)
class DeclaredMachine:
    """A machine by name; bandwidths in bytes/s, fixed costs in seconds."""

    name: str
    row: ProfileRow


def _paper(name: str, link: float, host: float) -> DeclaredMachine:
    return DeclaredMachine(name, ProfileRow.subtracting(link * GB, host * GB))


# Measured link and host bandwidths of arXiv 2608.16157, table 1. What the host keeps while the link
# is busy was not measured there; the difference of the two stands in for it.
MACHINES = {
    machine.name: machine
    for machine in (
        _paper("rtx4060-laptop", 11.8, 47.5),
        _paper("rtx3090-server", 25.3, 56.7),
        _paper("rtx4090-server", 25.1, 63.2),
        _paper("rtx5090-server", 52.7, 77.3),
        _paper("rtx5090-desktop", 49.0, 53.8),
        _paper("rtxpro6000-workstation", 51.5, 178.0),
    )
}

_REQUIRED = ("link_gbps", "host_gbps")
_OPTIONAL = ("link_shared_gbps", "host_shared_gbps", "fill_us", "handoff_us")


def declared(name: str) -> DeclaredMachine:
    """A preset by name, or a TOML file. Raises ConfigError."""
    if name in MACHINES:
        return MACHINES[name]
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(
            f"there is no machine {name!r}",
            expected="one of " + ", ".join(MACHINES) + ", or a .toml file",
        )
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", expected="a machine's TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", expected="a machine's TOML file") from error
    return _from_table(path, table)


def _from_table(path: Path, table: dict[str, object]) -> DeclaredMachine:
    numbers: dict[str, float] = {}
    for key, value in table.items():
        if key == "name":
            continue
        if key not in _REQUIRED + _OPTIONAL:
            known = ", ".join(("name", *_REQUIRED, *_OPTIONAL))
            raise ConfigError(f"{path}: unknown key {key!r}", expected=f"one of {known}")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{path}: {key} = {value!r}", expected="a number")
        numbers[key] = float(value)
    missing = [key for key in _REQUIRED if key not in numbers]
    if missing:
        raise ConfigError(f"{path}: no {missing[0]}", expected="bandwidths in GB/s")
    link, host = numbers["link_gbps"] * GB, numbers["host_gbps"] * GB
    guess = ProfileRow.subtracting(link, host)
    row = ProfileRow(
        link,
        host,
        numbers.get("link_shared_gbps", guess.link_shared / GB) * GB,
        numbers.get("host_shared_gbps", guess.host_shared / GB) * GB,
        numbers.get("fill_us", 0.0) * 1e-6,
        numbers.get("handoff_us", 0.0) * 1e-6,
    )
    return DeclaredMachine(str(table.get("name", path.stem)), row)
