"""Device memory for experts or for keys and values: what a byte of each saves. No torch."""

from __future__ import annotations

from dataclasses import replace

from headrace.planning.budget import MemoryBudget
from headrace.planning.cost import Costs
from headrace.planning.curves import Habits
from headrace.planning.divide import Claim, divide


def experts_claim(costs: Costs, slot_bytes: int, least: int, most: int) -> Claim:
    """Time of a decode step that expert slots save against having only the least."""
    seating = costs.seating
    assert seating is not None

    def step_s(slots: int) -> float:
        return replace(costs, seating=replace(seating, slots=slots)).decode(1).total_s

    worst = step_s(least)
    return Claim(slot_bytes, least, most, lambda slots: worst - step_s(slots))


def kv_claim(costs: Costs, budget: MemoryBudget, most: int, chunk: int, habits: Habits) -> Claim:
    """Time that keys and values save per decoded token: what is found again is not read again."""
    prompt = min(habits.prompt, max(1, costs.facts.max_context // 2))
    again_s = costs.first_token(prompt, chunk) / habits.answer

    def saved(blocks: int) -> float:
        return again_s * habits.reuse.at(blocks * budget.block_tokens / prompt)

    block_bytes = budget.kv_bytes // budget.kv_blocks
    return Claim(block_bytes, budget.kv_blocks, max(most, budget.kv_blocks), saved)


def worthwhile_slots(
    costs: Costs,
    budget: MemoryBudget,
    *,
    least: int,
    most: int,
    kv_blocks: int,
    chunk: int,
    habits: Habits | None = None,
) -> int:
    """Expert slots of `least..most` such that the last byte saves as much as one of KV would.

    `budget`: context and all else charged, staging too. `kv_blocks`: more are of no use.
    """
    if budget.kv_bytes == 0 or least >= most:
        return most
    experts = experts_claim(costs, budget.slot_bytes, least, most)
    kv = kv_claim(costs, budget, kv_blocks, chunk, habits or Habits())
    room = budget.free - budget.used + budget.kv_bytes
    return divide(room, (experts, kv))[0]


def chunk_tokens(costs: Costs, least: int, most: int) -> int:
    """Prompt tokens of a step: the fewest that are read within a fifth of the best speed.

    A streamed chunk takes as long as its copies however short it is, so longer ones read faster;
    but other sequences wait for a whole chunk.
    """
    sizes = [least]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    speeds = [size / costs.prefill(size, 0, costs.choose_prefill(size)) for size in sizes]
    enough = max(speeds) / 1.25
    return next(size for size, speed in zip(sizes, speeds, strict=True) if speed >= enough)
