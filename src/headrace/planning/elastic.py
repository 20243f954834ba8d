"""Changing a device's memory budget while it serves: what may be asked, and when to do it unasked.

Pure: every function returns a new budget or None; the engine carries it out between two steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import read_cache_size
from headrace.errors import CapacityError, ConfigError, RequestError
from headrace.planning.budget import CacheNeed, MemoryBudget, mib, useful_blocks
from headrace.planning.facts import ModelFacts

KEYS = ("experts", "kv_tokens", "state_slots", "device_bytes", "host_kv_tokens", "host_states")

# Other programs may take half of the reserve or give all of it before anything is done, keys and
# values are left alone between half and nine tenths in use; what is done then ends well inside, so
# nothing swings.
PRESSED, RELAXED = 0.5, 1.0
KV_FULL, KV_IDLE, KV_ROOM = 0.9, 0.5, 1.5
FIXED = {
    "resident": "all experts are on the device",
    "host": "all experts are computed on the host",
    "": "this engine has no device: the CPU computes experts where they lie",
}
HOST_GROWTH = 2  # the host tier may become so many times as large as planned
LEAST_GAIN = 50  # slots are not added by less than one part in so many


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least and most of one count."""

    least: int
    most: int

    def clamp(self, value: int) -> int:
        return max(self.least, min(self.most, value))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model and its promises leave open."""

    slots: Bounds
    kv_blocks: Bounds  # at least the promised context
    state_slots: Bounds
    unasked: Bounds  # of slots, for what nobody asked for; at least the experts of a layer
    rows: int  # all experts: a share is one of these
    block_bytes: int
    state_bytes: int  # of one sequence
    most_free: int = 1 << 60  # bytes that a budget may grow to unasked
    offset: int = 0  # bytes of a budget that nobody holds, but for its reserve and what it leaves
    fixed: str = ""  # why the experts cannot be resized
    host_blocks: Bounds = Bounds(0, 0)
    host_states: Bounds = Bounds(0, 0)


def limits_for(
    facts: ModelFacts, budget: MemoryBudget, need: CacheNeed, *, context: int, placement: str
) -> Limits:
    """`context`: the longest sequence promised. Only a hybrid cache can change its size."""
    # Until `at_rest` says otherwise nothing grows beyond what was planned.
    one = -(-context // need.block_tokens)
    states = 1 if budget.state_slots else 0
    fixed = budget.expert_slots
    hybrid = placement == "hybrid"
    return Limits(
        slots=Bounds(1, facts.rows) if hybrid else Bounds(fixed, fixed),
        kv_blocks=Bounds(one, max(one, useful_blocks(need))),
        state_slots=Bounds(states, states * max(need.most_states, budget.state_slots)),
        unasked=Bounds(min(fixed, max(facts.top_k, default=1)) if hybrid else fixed, fixed),
        rows=facts.rows,
        block_bytes=facts.kv_bytes_per_token(need.element_bytes) * need.block_tokens,
        state_bytes=need.state_bytes(facts),
        most_free=budget.free,
        fixed="" if hybrid else FIXED.get(placement, FIXED[""]),
        host_blocks=Bounds(0, HOST_GROWTH * budget.host_blocks),
        host_states=Bounds(0, HOST_GROWTH * budget.host_states),
    )


def at_rest(limits: Limits, budget: MemoryBudget, free: int, *, asked: bool) -> Limits:
    """Call when a budget is in place, after building and after each resize that was asked for:
    changes of the device's free memory (`free` now) are told from here on.

    `asked`: somebody chose this size; it may shrink under pressure and come back, not grow.
    """
    fixed = budget.expert_slots
    resizable = limits.slots.least < limits.slots.most
    most = limits.slots.most if resizable and not asked else fixed
    return replace(
        limits,
        unasked=Bounds(min(limits.unasked.least, fixed), most),
        most_free=budget.free if asked else 1 << 60,
        offset=free - _expected_free(budget),
    )


def _expected_free(budget: MemoryBudget) -> int:
    """Nobody holds the reserve and what the budget leaves."""
    return budget.free - budget.used + budget.reserve


def parse_resize(body: Mapping[str, Any], current: MemoryBudget, limits: Limits) -> MemoryBudget:
    """The budget that a resize request asks for; what it does not name stays.

    `experts`: as `experts.cache`; `kv_tokens`, `state_slots`: counts; `device_bytes`: all in all,
    made true by the experts. Raises RequestError on nonsense, CapacityError beyond the limits.
    """
    _check_keys(body)
    _check_fixed(body, current, limits)
    made = current
    if "device_bytes" in body:
        made = replace(made, free=_count(body, "device_bytes"))
    if "kv_tokens" in body:
        made = _kv(made, _count(body, "kv_tokens"), limits)
    if "state_slots" in body:
        slots = _within("state_slots", _count(body, "state_slots"), limits.state_slots)
        made = replace(made, state_slots=slots, state_bytes=slots * limits.state_bytes)
    if "host_kv_tokens" in body:
        blocks = -(-_count(body, "host_kv_tokens") // made.block_tokens)
        blocks = _within("host_kv_tokens in blocks", blocks, limits.host_blocks)
        made = replace(made, host_blocks=blocks)
    if "host_states" in body:
        count = _within("host_states", _count(body, "host_states"), limits.host_states)
        made = replace(made, host_states=count)
    if "experts" in body:
        made = replace(made, expert_slots=_experts(body["experts"], made, limits))
    elif "device_bytes" in body and limits.slots.least < limits.slots.most:
        fits = (made.free - _without_cache(made)) // made.slot_bytes
        made = replace(made, expert_slots=_within_memory(fits, made, limits))
    _check_fits(made, current)
    return made


def _check_keys(body: Mapping[str, Any]) -> None:
    known = ", ".join(KEYS)
    unknown = [key for key in body if key not in KEYS]
    if unknown:
        raise RequestError(
            f"unknown field {unknown[0]!r}", field=str(unknown[0]), expected=f"one of {known}"
        )
    if not body:
        raise RequestError("a resize that changes nothing", expected=f"at least one of {known}")


def _check_fixed(body: Mapping[str, Any], current: MemoryBudget, limits: Limits) -> None:
    """Some engines have no cache of experts, or no device at all."""
    key = "experts" if "experts" in body else "device_bytes"
    if limits.fixed and key in body and (key == "experts" or not current.slot_bytes):
        left = f"kv_tokens from {limits.kv_blocks.least * current.block_tokens}"
        left += f" to {limits.kv_blocks.most * current.block_tokens}"
        raise CapacityError(
            f"{key}: {limits.fixed}",
            expected=f"{left} or state_slots",
            fix="serve with --device emulated --set experts.placement=hybrid to resize experts",
        )


def _count(body: Mapping[str, Any], key: str) -> int:
    value = body[key]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60:
        return value
    raise RequestError(f"{key} = {value!r}", field=key, expected="a whole number, 0 or more")


def _within(key: str, value: int, bounds: Bounds) -> int:
    if bounds.least <= value <= bounds.most:
        return value
    raise CapacityError(f"{key} = {value}", expected=f"{bounds.least} to {bounds.most}")


def _kv(budget: MemoryBudget, tokens: int, limits: Limits) -> MemoryBudget:
    blocks, each = -(-tokens // budget.block_tokens), budget.block_tokens
    bounds = limits.kv_blocks
    if not bounds.least <= blocks <= bounds.most:
        raise CapacityError(
            f"kv_tokens = {tokens}",
            expected=f"{bounds.least * each} to {bounds.most * each}",
            fix="at least the context that was promised, at most what all sequences need",
        )
    return replace(budget, kv_blocks=blocks, kv_bytes=blocks * limits.block_bytes)


def _experts(value: Any, budget: MemoryBudget, limits: Limits) -> int:
    try:
        size = read_cache_size("experts", value)
    except ConfigError as error:
        raise RequestError(error.found, field="experts", expected=error.expected) from error
    if size is None:
        fits = (budget.free - _without_cache(budget)) // budget.slot_bytes
        return _within_memory(fits, budget, limits)
    slots = size.slots(budget.slot_bytes, limits.rows)
    if slots > limits.slots.most and size.unit == "bytes":
        slots = limits.slots.most
    return _within("experts", slots, limits.slots)


def _within_memory(fits: int, budget: MemoryBudget, limits: Limits) -> int:
    if fits < limits.slots.least:
        least = _without_cache(budget) + limits.slots.least * budget.slot_bytes
        raise CapacityError(
            f"{mib(budget.free)} of device memory", expected=f"at least {least} bytes"
        )
    return limits.slots.clamp(fits)


def _without_cache(budget: MemoryBudget) -> int:
    return budget.used - budget.expert_slots * budget.slot_bytes


def _check_fits(made: MemoryBudget, current: MemoryBudget) -> None:
    if made.used > made.free:
        raise CapacityError(
            f"{mib(made.used)} in all and {mib(made.free)} of device memory",
            expected=f"at most {made.free} bytes; now {current.used}",
            fix="shrink experts or kv_tokens in the same request",
        )


@dataclass(frozen=True, slots=True)
class Use:
    """What is seen of a device between two steps."""

    kv_blocks: int  # in use, those of requests that wait for room included
    free: int  # bytes of the device that nobody holds now


def rebalance(current: MemoryBudget, use: Use, limits: Limits) -> MemoryBudget | None:
    """The budget that fits better now, or None. Keys and values take from experts and give back;
    other programs' memory is made up for by experts, then by keys and values not in use.
    """
    change = use.free - limits.offset - _expected_free(current)
    made = _follow(_for_context(current, use, limits), change, use, limits)
    return None if made == current else made


def _for_context(current: MemoryBudget, use: Use, limits: Limits) -> MemoryBudget:
    """KV follows the context, in bytes that experts give or get."""
    blocks, bounds = current.kv_blocks, limits.kv_blocks
    full, idle = use.kv_blocks > KV_FULL * blocks, use.kv_blocks < KV_IDLE * blocks
    if limits.block_bytes == 0 or not (full or idle):
        return current
    wanted = bounds.clamp(int(use.kv_blocks * KV_ROOM) + 1)
    slot = current.slot_bytes
    if full:
        # What is free within the budget is taken first, then experts down to those of a layer.
        spare = current.free - current.used
        slots = max(0, current.expert_slots - limits.unasked.least)
        wanted = min(wanted, blocks + (spare + slots * slot) // limits.block_bytes)
        more = max(0, wanted - blocks) * limits.block_bytes
        taken = max(0, -(-(more - spare) // slot))
        return _with(current, current.expert_slots - taken, max(wanted, blocks), limits)
    if current.expert_slots >= limits.unasked.most or wanted >= blocks:
        return current
    # Blocks go only where they become slots.
    room = current.free - current.used + (blocks - wanted) * limits.block_bytes
    given = min(room // slot, limits.unasked.most - current.expert_slots)
    if given * LEAST_GAIN < current.expert_slots or given == 0:
        return current
    return _with(current, current.expert_slots + given, wanted, limits)


def _follow(made: MemoryBudget, change: int, use: Use, limits: Limits) -> MemoryBudget:
    """The budget grows and shrinks by what other programs gave or took."""
    slot, free = made.slot_bytes, made.free + change
    if change < -PRESSED * made.reserve:
        over = max(0, made.used - free)
        slots = min(-(-over // slot), max(0, made.expert_slots - limits.unasked.least))
        blocks, left = 0, over - slots * slot
        if left > 0 and limits.block_bytes:
            spare = made.kv_blocks - limits.kv_blocks.clamp(use.kv_blocks)
            blocks = min(-(-left // limits.block_bytes), max(0, spare))
        shrunk = _with(made, made.expert_slots - slots, made.kv_blocks - blocks, limits)
        return replace(shrunk, free=max(free, shrunk.used))
    if change > RELAXED * made.reserve:
        free = min(free, limits.most_free)
        more = min((free - made.used) // slot, limits.unasked.most - made.expert_slots)
        if more > 0 and more * LEAST_GAIN >= made.expert_slots:
            grown = _with(made, made.expert_slots + more, made.kv_blocks, limits)
            return replace(grown, free=free)
    return made


def after_failure(current: MemoryBudget, limits: Limits) -> MemoryBudget | None:
    """An eighth fewer slots, because the device refused the memory; None where none can go."""
    slots = max(limits.slots.least, min(current.expert_slots - 1, current.expert_slots * 7 // 8))
    if slots >= current.expert_slots:
        return None
    freed = (current.expert_slots - slots) * current.slot_bytes
    return replace(current, expert_slots=slots, free=current.free - freed)


def _with(budget: MemoryBudget, slots: int, blocks: int, limits: Limits) -> MemoryBudget:
    return replace(
        budget, expert_slots=slots, kv_blocks=blocks, kv_bytes=blocks * limits.block_bytes
    )
