"""RAM smaller than the experts: rows stay on disk and RAM is their cache. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import CacheSize, EngineConfig
from headrace.errors import CapacityError
from headrace.planning.budget import (
    DeviceNeed,
    MemoryBudget,
    mib,
    tier_memory,
    useful_blocks,
    with_experts,
)
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
    _check(asked, wanted, most, budget)
    spare = max(1, min(2 * max(facts.top_k), wanted // COMING_SHARE))
    rows = min(facts.rows, wanted - spare)
    if wanted >= facts.rows:
        rows, spare = facts.rows, max(1, min(spare, most - facts.rows))
    share = f"{100 * rows / facts.rows:.0f}% of {facts.rows} experts"
    size = mib((rows + spare) * budget.slot_bytes)
    why = "experts.ram" if asked is not None else budget.explain()
    plan = TierPlan(
        Choice("disk", _reason(asked, facts, machine)),
        Choice(rows, f"{share}, {size} with the {spare} that are on their way: {why}"),
        spare,
        _policy(config),
        budget.slot_bytes,
    )
    blocks = useful_blocks(need.cache) if need.cache.kv_bytes is None else 0
    return plan, with_experts(budget, rows, spare, kv_blocks=blocks)


def _check(asked: CacheSize | None, wanted: int, most: int, budget: MemoryBudget) -> None:
    least = LEAST_ROWS * budget.slot_bytes
    if asked is not None and wanted < LEAST_ROWS:
        raise CapacityError(
            f"experts.ram = {asked} holds {wanted} experts of {mib(budget.slot_bytes)}",
            expected=f"{LEAST_ROWS} experts at least ({mib(least)}) and at most {most}",
        )
    if most < LEAST_ROWS or wanted > most:
        left = budget.free - budget.used
        raise CapacityError(
            f"{wanted} experts of {mib(budget.slot_bytes)} and {mib(left)} of memory are left to "
            f"them ({budget.explain()})"
            if most >= LEAST_ROWS
            else f"{mib(left)} of memory are left to experts ({budget.explain()})",
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
