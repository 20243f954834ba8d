"""Device memory for experts, keys and values, or saved states: what a byte of each saves.

No torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from headrace.planning.budget import MemoryBudget
from headrace.planning.cost import Costs
from headrace.planning.curves import Habits
from headrace.planning.divide import Claim, divide


def experts_claim(costs: Costs, slot_bytes: int, least: int, most: int) -> Claim:
    """Time of a decode step that expert slots save against having only the least."""
    seating = costs.seating
    assert seating is not None

    @cache
    def step_s(slots: int) -> float:
        return replace(costs, seating=replace(seating, slots=slots)).decode(1).total_s

    worst = step_s(least)
    return Claim(slot_bytes, least, most, lambda slots: worst - step_s(slots))


def kv_claim(
    costs: Costs, budget: MemoryBudget, most: int, chunk: int, habits: Habits, kept: float = 1.0
) -> Claim:
    """Time that keys and values save per decoded token: what is found again is not read again.

    `kept`: the share of it that saved states lead to.
    """
    prompt = min(habits.prompt, max(1, costs.facts.max_context // 2))
    again_s = kept * costs.first_token(prompt, chunk) / habits.answer

    def saved(blocks: int) -> float:
        return again_s * habits.reuse.at(blocks * budget.block_tokens / prompt)

    block_bytes = budget.kv_bytes // budget.kv_blocks
    return Claim(block_bytes, budget.kv_blocks, max(most, budget.kv_blocks), saved)


@dataclass(frozen=True, slots=True)
class Shares:
    """What the experts and the states get; the rest is keys and values."""

    slots: int
    states: int


def worthwhile(
    costs: Costs,
    budget: MemoryBudget,
    *,
    least: int,
    most: int,
    kv_blocks: int,
    states: int,
    chunk: int,
    habits: Habits | None = None,
) -> Shares:
    """Expert slots of `least..most` and state slots up to `states` such that the last byte saves as
    much in either as it would as keys and values.

    `budget`: context, the states of running sequences and all else charged, staging too.
    `kv_blocks`: more are of no use. A prompt is found again as far as both its keys and values and
    a state are, so the two multiply: each number of states is tried, the rest divided.
    """
    habits = habits or Habits()
    if budget.kv_bytes == 0 or least >= most:
        return Shares(most, budget.state_slots)
    experts = experts_claim(costs, budget.slot_bytes, least, most)
    room = budget.free - budget.used + budget.kv_bytes
    each = budget.state_bytes // budget.state_slots if budget.state_slots else 0
    best = Shares(most, budget.state_slots)
    best_s = -1.0
    for count in range(budget.state_slots, max(states, budget.state_slots) + 1):
        left = room - (count - budget.state_slots) * each
        # One sequence runs, the other slots save.
        kept = habits.kept.at(count - 1) if each else 1.0
        kv = kv_claim(costs, budget, kv_blocks, chunk, habits, kept)
        if left < least * budget.slot_bytes + budget.kv_bytes:
            break
        slots, blocks = divide(left, (experts, kv))
        saved_s = experts.saved(slots) + kv.saved(blocks)
        if saved_s > best_s:
            best, best_s = Shares(slots, count), saved_s
        if not each:
            break
    return best


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
