"""Declared machines: figures as somebody states them, for predictions without the machine."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError
from headrace.files import read_text
from headrace.planning.machine import Accelerator, Machine
from headrace.planning.profile import ProfileRow

GB, GIB, TERA = 1e9, 1 << 30, 1e12

# What published bandwidths and operation rates leave of themselves in real kernels.
KERNEL_SHARE, FLOPS_SHARE = 0.7, 0.5
# Memory of a device that its driver and the desktop keep.
DRIVER_SHARE = 0.06


@dataclass(frozen=True, slots=True)
class DeclaredMachine:
    """A machine by name; bandwidths in bytes/s, fixed costs in seconds."""

    name: str
    row: ProfileRow
    machine: Machine


@dataclass(frozen=True, slots=True)
class Published:
    """Of a device and its host, from their makers: GiB, GB/s, TFLOPS of dense 16-bit products."""

    device: str
    memory: float
    bandwidth: float
    tflops: float
    ram: float
    cores: int


def _machine(name: str, row: ProfileRow, made: Published, *, pinning: bool = True) -> Machine:
    total = int(made.memory * GIB)
    device = Accelerator(
        made.device,
        memory_total=total,
        memory_free=int(total * (1 - DRIVER_SHARE)),
        kernels=made.bandwidth * GB * KERNEL_SHARE,
        flops=made.tflops * TERA * FLOPS_SHARE,
        pinning=pinning,
    )
    ram = int(made.ram * GIB)
    return Machine(name, made.cores, made.cores, ram, int(ram * 0.9), (), device, row)


def _paper(name: str, link: float, host: float, made: Published) -> DeclaredMachine:
    row = ProfileRow.subtracting(link * GB, host * GB)
    return DeclaredMachine(name, row, _machine(name, row, made))


# Measured link and host bandwidths and the memory sizes of arXiv 2608.16157, table 1. What the host
# keeps while the link is busy was not measured there; the difference of the two stands in for it.
# Bandwidth and operation rates of the devices are their makers'; RAM is a guess where the text is
# silent.
MACHINES = {
    machine.name: machine
    for machine in (
        _paper("rtx4060-laptop", 11.8, 47.5, Published("RTX 4060 laptop", 8, 256, 46, 64, 6)),
        _paper("rtx3090-server", 25.3, 56.7, Published("RTX 3090", 24, 936, 71, 256, 6)),
        _paper("rtx4090-server", 25.1, 63.2, Published("RTX 4090", 24, 1008, 165, 256, 6)),
        _paper("rtx5090-server", 52.7, 77.3, Published("RTX 5090", 32, 1792, 209, 256, 6)),
        _paper("rtx5090-desktop", 49.0, 53.8, Published("RTX 5090", 32, 1792, 209, 192, 6)),
        _paper(
            "rtxpro6000-workstation",
            51.5,
            178.0,
            Published("RTX PRO 6000", 96, 1792, 252, 512, 16),
        ),
    )
}

_REQUIRED = ("link_gbps", "host_gbps")
_RATES = ("link_shared_gbps", "host_shared_gbps")
_FIXED = ("fill_us", "handoff_us")
_DEVICE = ("memory_gib", "device_gbps", "device_tflops", "ram_gib", "cores")
_OPTIONAL = _RATES + _FIXED + _DEVICE
# A device of which only the link is told: that of a common desktop.
_GUESS = {
    "memory_gib": 16.0,
    "device_gbps": 500.0,
    "device_tflops": 60.0,
    "ram_gib": 64.0,
    "cores": 8.0,
}


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
        table = tomllib.loads(read_text(path, pipes=True))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", expected="a machine's TOML file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}", expected="a machine's TOML file") from error
    return _from_table(path, table)


def _from_table(path: Path, table: Mapping[str, object]) -> DeclaredMachine:
    numbers = _numbers(path, table)
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
    name = str(table.get("name", path.stem))
    memory, bandwidth, tflops, ram, cores = (numbers.get(key, _GUESS[key]) for key in _DEVICE)
    made = Published(f"device of {name}", memory, bandwidth, tflops, ram, max(1, int(cores)))
    pinning = table.get("pinning", True)
    assert isinstance(pinning, bool)
    return DeclaredMachine(name, row, _machine(name, row, made, pinning=pinning))


def _numbers(path: Path, table: Mapping[str, object]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for key, value in table.items():
        if key == "name":
            continue
        if key == "pinning":
            if not isinstance(value, bool):
                raise ConfigError(f"{path}: pinning = {value!r}", expected="true or false")
            continue
        if key not in _REQUIRED + _OPTIONAL:
            known = ", ".join(("name", *_REQUIRED, *_OPTIONAL, "pinning"))
            raise ConfigError(f"{path}: unknown key {key!r}", expected=f"one of {known}")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{path}: {key} = {value!r}", expected="a number")
        least = "a number of at least 0" if key in _FIXED else "a number above 0"
        if not 0 <= value < 1e9 or (value == 0 and key not in _FIXED):
            raise ConfigError(f"{path}: {key} = {value}", expected=least)
        numbers[key] = float(value)
    return numbers
