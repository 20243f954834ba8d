"""RAM smaller than the experts: rows stay on disk and RAM is their cache. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import CacheSize, EngineConfig
from headrace.errors import CapacityError
from headrace.planning.budget import (
    TIER_RESERVE,
    DeviceNeed,
    MemoryBudget,
    mib,
    reserve_bytes,
    tier_memory,
    useful_blocks,
    with_experts,
)
from headrace.planning.emulation import rows_on_disk
from headrace.planning.facts import ModelFacts
from headrace.planning.machine import Machine
from headrace.planning.placement import Choice

PAGE = 4096
LEAST_ROWS = 2  # one that is kept and one that comes in
DISK_RATE = 1e9  # bytes/s of a disk of which nothing is known
COMING_SHARE = 4  # of the rows, at most one part in so many are on their way


@dataclass(frozen=True, slots=True)
class TierPlan:
    """`rows` stay in RAM while they are worth it, `spare` more are on their way."""

    placement: Choice[str]
    rows: Choice[int]
    spare: int
    policy: Choice[str]
    slot_bytes: int

    def choices(self) -> dict[str, Choice[str] | Choice[int]]:
        return {"placement": self.placement, "rows in RAM": self.rows, "policy": self.policy}


def slot_bytes_of(facts: ModelFacts) -> int:
    """At most: a row on whole blocks, and the ends of three spans that share theirs with others."""
    return -(-facts.slot_bytes // PAGE) * PAGE + 6 * PAGE


def plan_tier(
    config: EngineConfig, machine: Machine, facts: ModelFacts, need: DeviceNeed
) -> tuple[TierPlan, MemoryBudget]:
    """As many rows in RAM as were asked, or as fit beside all that is no expert.

    Raises CapacityError where not even two do.
    """
    asked = config.experts.ram
    budget = tier_memory(facts, machine.ram_total, machine.ram_free, need, slot_bytes_of(facts))
    most = (budget.free - budget.used) // budget.slot_bytes
    wanted = most if asked is None else asked.slots(budget.slot_bytes, facts.rows)
    _check(asked, wanted, most, budget.slot_bytes, budget.explain())
    plan = _tier(config, machine, facts, wanted, most, budget.explain())
    blocks = useful_blocks(need.cache) if need.cache.kv_bytes is None else 0
    return plan, with_experts(budget, plan.rows.value, plan.spare, kv_blocks=blocks)


def plan_behind(
    config: EngineConfig, machine: Machine, facts: ModelFacts, *, device_bytes: int
) -> TierPlan | None:
    """RAM between the disk and a device that holds all else; None where it holds every row and
    nothing else was asked. Raises CapacityError where not even two rows fit.
    """
    if not rows_on_disk(config, machine, facts):
        return None
    asked, slot_bytes = config.experts.ram, slot_bytes_of(facts)
    taken = device_bytes if config.device == "emulated" else 0  # that one is made of RAM
    left = max(0, machine.ram_free - taken)
    reserve = min(reserve_bytes(machine.ram_total), left // TIER_RESERVE)
    why = f"{mib(machine.ram_free)} free - {mib(taken)} device"
    most = (left - reserve) // slot_bytes
    wanted = most if asked is None else asked.slots(slot_bytes, facts.rows)
    _check(asked, wanted, most, slot_bytes, f"{why} - {mib(reserve)} reserve")
    return _tier(config, machine, facts, wanted, most, f"{why} - {mib(reserve)} reserve")


def _tier(
    config: EngineConfig, machine: Machine, facts: ModelFacts, wanted: int, most: int, room: str
) -> TierPlan:
    """`wanted` of the `most` slots that fit; `room`: how those came about."""
    asked, slot_bytes = config.experts.ram, slot_bytes_of(facts)
    spare = max(1, min(2 * max(facts.top_k), wanted // COMING_SHARE))
    rows = min(facts.rows, wanted - spare)
    if wanted >= facts.rows:
        rows, spare = facts.rows, max(1, min(spare, most - facts.rows))
    share = f"{100 * rows / facts.rows:.0f}% of {facts.rows} experts"
    size = mib((rows + spare) * slot_bytes)
    why = "experts.ram" if asked is not None else room
    return TierPlan(
        Choice("disk", _reason(asked, facts, machine)),
        Choice(rows, f"{share}, {size} with the {spare} that are on their way: {why}"),
        spare,
        _policy(config),
        slot_bytes,
    )


def _check(asked: CacheSize | None, wanted: int, most: int, slot_bytes: int, room: str) -> None:
    least = LEAST_ROWS * slot_bytes
    if asked is not None and wanted < LEAST_ROWS:
        raise CapacityError(
            f"experts.ram = {asked} holds {wanted} experts of {mib(slot_bytes)}",
            expected=f"{LEAST_ROWS} experts at least ({mib(least)}) and at most {most}",
        )
    if most < LEAST_ROWS or wanted > most:
        left = mib(max(0, most) * slot_bytes)
        raise CapacityError(
            f"{wanted} experts of {mib(slot_bytes)} and {left} of memory are left to them ({room})"
            if most >= LEAST_ROWS
            else f"{left} of memory are left to experts ({room})",
            expected=f"{LEAST_ROWS} experts at least ({mib(least)}) and at most {most}",
            fix="lower experts.ram, memory.kv_bytes or the context, or stop other programs",
        )


def _reason(asked: CacheSize | None, facts: ModelFacts, machine: Machine) -> str:
    experts = mib(facts.experts_bytes)
    if asked is not None:
        return f"experts.ram = {asked}: the other rows of {experts} stay on disk"
    return (
        f"the weights need {mib(facts.total_bytes)} and {mib(machine.ram_free)} of memory are "
        "free: experts stay on disk, RAM is their cache"
    )


def _policy(config: EngineConfig) -> Choice[str]:
    if config.experts.policy != "auto":
        return Choice(config.experts.policy, "asked for")
    return Choice("recency-frequency", "misses least in simulation")
