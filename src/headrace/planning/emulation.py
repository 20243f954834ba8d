"""The device `emulated` as a Machine: memory out of RAM, rates from the settings or a declared one.

Its dense weights lie where they were loaded, so its memory counts them though RAM holds them once.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.config import EmulatedConfig, EngineConfig
from headrace.errors import CapacityError, ConfigError
from headrace.planning.budget import MIB, TIER_RESERVE, mib, reserve_bytes
from headrace.planning.facts import ModelFacts
from headrace.planning.machine import Accelerator, Machine
from headrace.planning.machines import declared
from headrace.planning.profile import ProfileRow

# Until they are measured: a few channels of DDR4, and a core that streams 5 GB/s of weights.
CORE_BYTES_PER_S, HOST_BYTES_PER_S, LINK_BYTES_PER_S = 5e9, 40e9, 10e9
CORE_FLOPS = 5e10


def emulate(config: EngineConfig, machine: Machine, facts: ModelFacts) -> Machine:
    """`machine` with the emulated device in it.

    Raises ConfigError (a virtual clock without rates, an unknown machine) or CapacityError.
    """
    asked = config.emulated
    if asked.clock == "virtual" and asked.machine is None:
        raise ConfigError(
            "emulated.clock = 'virtual' without a machine to take times from",
            expected="emulated.machine, a preset's name or a .toml file",
        )
    model = None if asked.machine is None else declared(asked.machine).machine
    device = model.device if model is not None else None
    on_disk = rows_on_disk(config, machine, facts)
    room = _room_over_disk(config, machine, facts) if on_disk else _room(machine, facts)
    most = room // 2 if on_disk and config.experts.ram is None else _auto(room, facts)
    wanted = asked.memory or (device.memory_free if device is not None else most)
    if asked.memory is not None and asked.memory > room:
        raise CapacityError(
            f"emulated.memory = {asked.memory} and RAM leaves {mib(room)} to it",
            expected=f"at most {room}",
            fix="lower it, stop other programs or choose a smaller model",
        )
    memory = min(wanted, room)
    if device is None:
        device = _native(asked, machine)
    rates = model.rates if model is not None else None
    return replace(
        machine,
        device=replace(
            device,
            memory_total=memory,
            memory_free=memory,
            pinning=device.pinning and asked.pinning == "allowed",
        ),
        rates=_with_link(rates, asked.link),
    )


def rows_on_disk(config: EngineConfig, machine: Machine, facts: ModelFacts) -> bool:
    """RAM is a cache of experts behind the device: asked for, or it does not hold them all."""
    most = facts.total_bytes if config.device == "emulated" else facts.experts_bytes
    return config.experts.ram is not None or most >= machine.ram_free


def device_mark(asked: EmulatedConfig) -> str:
    """All that sets the device's speed, for a profile's fingerprint."""
    link = "unlimited" if asked.link is None else f"{asked.link:g} B/s"
    threads = f"{asked.host_threads or 'auto'}+{asked.device_threads or 'auto'} threads"
    return f"emulated, link {link}, pinning {asked.pinning}, {threads}"


def threads_of(asked: EmulatedConfig, machine: Machine) -> tuple[int, int]:
    """(host, device): cores are shared out, half each, but for what was asked."""
    cores = machine.physical_cores
    if asked.host_threads is not None:
        device = asked.device_threads or max(1, cores - asked.host_threads)
        return asked.host_threads, device
    device = asked.device_threads or max(1, cores // 2)
    return max(1, cores - device), device


def guessed_rates(config: EngineConfig, machine: Machine) -> ProfileRow:
    """For want of a measurement: by cores, and the link as it is set."""
    return ProfileRow.subtracting(config.emulated.link or LINK_BYTES_PER_S, guessed_host(machine))


def guessed_host(machine: Machine) -> float:
    """Bytes/s of weights that the CPU goes through, by cores."""
    return min(HOST_BYTES_PER_S, CORE_BYTES_PER_S * machine.physical_cores)


def _native(asked: EmulatedConfig, machine: Machine) -> Accelerator:
    _, threads = threads_of(asked, machine)
    return Accelerator(
        "emulated",
        memory_total=0,
        memory_free=0,
        kernels=CORE_BYTES_PER_S * threads,
        flops=CORE_FLOPS * threads,
    )


def _room(machine: Machine, facts: ModelFacts) -> int:
    """RAM that weights and a reserve leave, and the dense weights, which the device shares."""
    left = machine.ram_free - facts.total_bytes
    if left <= 0:
        raise CapacityError(
            f"the weights need {mib(facts.total_bytes)} and {mib(machine.ram_free)} of memory "
            "are free",
            expected=f"at least {mib(facts.total_bytes + reserve_bytes(machine.ram_total))}",
            fix="stop other programs or choose a smaller model",
        )
    reserve = min(reserve_bytes(machine.ram_total), left // 2)
    return left - reserve + facts.total_bytes - facts.experts_bytes


def _room_over_disk(config: EngineConfig, machine: Machine, facts: ModelFacts) -> int:
    """The same where rows stay on disk: RAM holds the device and at least a few of them."""
    ram = config.experts.ram
    rows = 2 if ram is None else max(2, ram.slots(facts.slot_bytes, facts.rows))
    left = machine.ram_free - rows * facts.slot_bytes
    room = left - min(reserve_bytes(machine.ram_total), max(0, left) // TIER_RESERVE)
    dense = facts.total_bytes - facts.experts_bytes
    if room <= dense:
        raise CapacityError(
            f"all that is no expert needs {mib(dense)} and {mib(max(0, room))} of memory are left "
            f"beside {rows} experts",
            expected=f"more than {mib(dense)}",
            fix="lower experts.ram, stop other programs or choose a smaller model",
        )
    return room


def _auto(room: int, facts: ModelFacts) -> int:
    """Enough for every expert and some context; not all of RAM, which it would have to fill."""
    return min(room, facts.total_bytes * 3 // 2 + 1024 * MIB)


def _with_link(rates: ProfileRow | None, link: float | None) -> ProfileRow | None:
    """Declared rates with the link that was set, shared in proportion."""
    if rates is None or link is None:
        return rates
    return replace(rates, link=link, link_shared=link * rates.link_shared / rates.link)
