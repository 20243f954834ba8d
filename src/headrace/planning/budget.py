"""How free memory is divided. RAM: weights, a reserve, state, the rest for KV. A device: weights
that are no experts, a reserve, workspace, state, KV of the context, then expert slots. State of a
sequence is what does not grow with it: recurrent, and keys and values of layers with a window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.errors import CapacityError
from headrace.planning.facts import KvNeed, ModelFacts
from headrace.planning.windows import window_bytes

MIB = 1 << 20
MOST_BLOCKS = 1 << 22  # account of one takes 48 bytes, also where it holds nothing
STATE_PART = 4  # states take at most one part in so many of what caches have
TIER_RESERVE = 8  # where experts lie on disk, at most one part in so many is left alone


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What the caches of one model are asked to hold."""

    context: int  # tokens of the longest sequence
    sequences: int  # at once
    block_tokens: int
    element_bytes: int  # of keys and values
    kv_bytes: int | None = None  # None = as much as is useful and fits
    states: int = 0  # saved ones included; never fewer than sequences
    asked: bool = False  # the context is a promise; otherwise as much of it as there is room for

    @property
    def most_states(self) -> int:
        return max(self.sequences, self.states)

    def state_bytes(self, facts: ModelFacts) -> int:
        """Of one sequence, 0 where the model has none."""
        return facts.state_bytes_per_sequence() + window_bytes(
            facts,
            block_tokens=self.block_tokens,
            context=self.context,
            element_bytes=self.element_bytes,
        )


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes by purpose, and the counts that follow from them."""

    free: int
    weights: int
    reserve: int
    state_bytes: int
    kv_bytes: int
    state_slots: int  # 0 = the model has neither recurrent state nor windows
    kv_blocks: int
    block_tokens: int
    expert_slots: int = 0  # this and the rest: of a device only
    staging_slots: int = 0  # behind the expert slots, never resident
    slot_bytes: int = 0
    workspace: int = 0  # activations and graph buffers
    host_blocks: int = 0  # of the prefix cache's second tier, in RAM; not part of `used`
    host_states: int = 0

    @property
    def used(self) -> int:
        """Bytes of all purposes, the reserve included."""
        fixed = self.weights + self.reserve + self.workspace + self.state_bytes
        return fixed + self.kv_bytes + self.arena_bytes

    @property
    def arena_bytes(self) -> int:
        """Expert slots and staging slots."""
        return (self.expert_slots + self.staging_slots) * self.slot_bytes

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_tokens

    def explain(self) -> str:
        parts = [f"{mib(self.free)} free", f"{mib(self.weights)} weights"]
        parts.append(f"{mib(self.reserve)} reserve")
        if self.state_slots:
            parts.append(f"{mib(self.state_bytes)} state")
        if self.slot_bytes:
            parts.append(f"{mib(self.workspace)} workspace")
            parts.append(f"{mib(self.arena_bytes)} experts")
        return " - ".join(parts)


def reserve_bytes(ram_total: int) -> int:
    """Left alone for activations, tokenizer and other programs."""
    return max(512 * MIB, ram_total // 16)


def plan_memory(
    facts: ModelFacts, *, ram_total: int, ram_free: int, need: CacheNeed
) -> MemoryBudget:
    """Divide free RAM. Raises CapacityError when the weights or a single block do not fit."""
    left = ram_free - facts.total_bytes
    if left <= 0:
        raise CapacityError(
            f"the weights need {mib(facts.total_bytes)} and {mib(ram_free)} of memory are free",
            expected=f"at least {mib(facts.total_bytes + reserve_bytes(ram_total))}",
            fix="stop other programs or choose a smaller model",
        )
    # A small machine keeps half of what the weights leave, rather than nothing for the caches.
    reserve = min(reserve_bytes(ram_total), left // 2)
    room = left - reserve
    # Where nothing grows with the context, the caches are states alone.
    grows = facts.kv_bytes_per_token(1) > 0
    state_bytes, slots = _state(facts, room, need, part=STATE_PART if grows else 1)
    room -= state_bytes
    block_bytes = facts.kv_bytes_per_token(need.element_bytes) * need.block_tokens
    blocks = _blocks(block_bytes, room, need)
    return MemoryBudget(
        free=ram_free,
        weights=facts.total_bytes,
        reserve=reserve,
        state_bytes=state_bytes,
        kv_bytes=blocks * block_bytes,
        state_slots=slots,
        kv_blocks=blocks,
        block_tokens=need.block_tokens,
    )


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """What a device holds besides the weights and experts."""

    cache: CacheNeed
    step_tokens: int
    workspace: int | None = None  # bytes as measured in a dry run; None = estimated


def device_reserve(memory: int) -> int:
    """Left alone for other programs and for what no estimate sees."""
    return min(256 * MIB, memory // 16)


def estimate_workspace(facts: ModelFacts, need: DeviceNeed) -> int:
    """Activations of the largest step in float32, with every part of every expert, and logits;
    queries and results of each head where heads share latents; keys and values of its tokens in
    layers with a window, which are given back behind it."""
    # Two operations for each of their elements and each key.
    latents = max((2 * need.work for need in facts.state if isinstance(need, KvNeed)), default=0)
    wide = 8 + 2 * max(facts.top_k, default=0)
    windows = sum(facts.window_elements().values()) * need.cache.element_bytes
    step = need.step_tokens * (4 * facts.hidden * wide + latents + windows)
    return step + 4 * need.cache.sequences * facts.vocab


def device_memory(facts: ModelFacts, free: int, need: DeviceNeed) -> MemoryBudget:
    """All but the experts, context first: what is left of `free` is theirs.

    Raises CapacityError where the weights, the asked context or a single block do not fit.
    """
    dense = facts.total_bytes - facts.experts_bytes
    reserve = device_reserve(free)
    workspace = estimate_workspace(facts, need) if need.workspace is None else need.workspace
    room = free - dense - reserve - workspace
    if room <= 0:
        least = dense + reserve + workspace
        raise CapacityError(
            f"the device has {mib(free)} for {mib(dense)} of weights that are no experts, "
            f"{mib(workspace)} workspace and {mib(reserve)} reserve",
            expected=f"more than {mib(least)}",
            fix="compute on the CPU (device = cpu) or choose a smaller model",
        )
    return _with_context(
        facts,
        need,
        room,
        free=free,
        weights=dense,
        reserve=reserve,
        slot_bytes=facts.slot_bytes,
        workspace=workspace,
    )


def tier_memory(
    facts: ModelFacts, total: int, free: int, need: DeviceNeed, slot_bytes: int
) -> MemoryBudget:
    """RAM with all but the experts, context first: what is left of `free` is a cache of theirs.

    Raises CapacityError where the other weights, the asked context or a single block do not fit.
    """
    dense = facts.total_bytes - facts.experts_bytes
    workspace = estimate_workspace(facts, need) if need.workspace is None else need.workspace
    left = free - dense - workspace
    if left <= 0:
        raise CapacityError(
            f"all that is no expert needs {mib(dense + workspace)} and {mib(free)} of memory are "
            "free",
            expected=f"more than {mib(dense + workspace + 2 * slot_bytes)}",
            fix="stop other programs or choose a smaller model",
        )
    # Every row in RAM saves reads: a small machine, or a container, keeps an eighth.
    reserve = min(reserve_bytes(total), left // TIER_RESERVE)
    room = left - reserve
    return _with_context(
        facts,
        need,
        room,
        free=free,
        weights=dense,
        reserve=reserve,
        slot_bytes=slot_bytes,
        workspace=workspace,
    )


def _with_context(facts: ModelFacts, need: DeviceNeed, room: int, **fixed: int) -> MemoryBudget:
    """What is `fixed`, with state, and keys and values of the context, in `room`."""
    state_bytes, slots = _state(facts, room, need.cache)
    block_bytes = facts.kv_bytes_per_token(need.cache.element_bytes) * need.cache.block_tokens
    blocks = _context_blocks(block_bytes, room - state_bytes, need)
    return MemoryBudget(
        state_bytes=state_bytes,
        kv_bytes=blocks * block_bytes,
        state_slots=slots,
        kv_blocks=blocks,
        block_tokens=need.cache.block_tokens,
        **fixed,
    )


def _context_blocks(block_bytes: int, room: int, need: DeviceNeed) -> int:
    """Of one sequence, or what memory.kv_bytes says."""
    cache = need.cache
    if block_bytes == 0 or cache.kv_bytes is not None:
        return _blocks(block_bytes, room, cache)
    one = -(-cache.context // cache.block_tokens)
    if cache.asked:
        if one * block_bytes > room:
            fits = room // block_bytes * cache.block_tokens
            raise CapacityError(
                f"context = {cache.context}, but the device holds keys and values of {fits} tokens",
                expected=f"at most {fits}",
                fix="lower the context or free device memory",
            )
        return one
    if block_bytes > room:
        return _blocks(block_bytes, room, cache)
    return max(1, min(one, room // 4 // block_bytes))


def with_experts(budget: MemoryBudget, slots: int, staging: int, *, kv_blocks: int) -> MemoryBudget:
    """Expert slots out of what `budget` leaves; KV grows to `kv_blocks` as far as that goes.

    Raises CapacityError, naming the most, where the slots do not fit.
    """
    left = budget.free - budget.used
    arena = (slots + staging) * budget.slot_bytes
    if arena > left:
        most = max(0, left // budget.slot_bytes - staging)
        raise CapacityError(
            f"{slots} expert slots of {mib(budget.slot_bytes)} and {mib(left)} of device memory "
            "are left to them",
            expected=f"at most {most} slots",
            fix="lower experts.cache, the context or memory.kv_bytes",
        )
    block_bytes = budget.kv_bytes // budget.kv_blocks if budget.kv_blocks else 0
    more = max(0, kv_blocks - budget.kv_blocks)
    if block_bytes:
        more = min(more, (left - arena) // block_bytes)
    return replace(
        budget,
        expert_slots=slots,
        staging_slots=staging,
        kv_blocks=budget.kv_blocks + more,
        kv_bytes=budget.kv_bytes + more * block_bytes,
    )


def _state(
    facts: ModelFacts, room: int, need: CacheNeed, *, part: int = STATE_PART
) -> tuple[int, int]:
    """(bytes, slots): one slot per sequence and those for saved states, in at most one part of so
    many of the room, and of what a promised context leaves; at least one."""
    each = need.state_bytes(facts)
    if each == 0:
        return 0, 0
    if each > room:
        raise CapacityError(
            f"the state of one sequence needs {mib(each)} and {mib(room)} are left for caches",
            fix=_smaller(facts, room, need) or "stop other programs or choose a smaller model",
        )
    slots = min(need.most_states, room // part // each)
    if need.asked and need.kv_bytes is None:
        block_bytes = facts.kv_bytes_per_token(need.element_bytes) * need.block_tokens
        promised = -(-need.context // need.block_tokens) * block_bytes
        slots = min(slots, (room - promised) // each)
    slots = max(1, slots)
    return slots * each, slots


def _smaller(facts: ModelFacts, room: int, need: CacheNeed) -> str:
    """The context whose windows fit, where one does."""
    fixed, block = facts.state_bytes_per_sequence(), need.block_tokens * need.element_bytes
    each = (facts.kv_bytes_per_token(1) + sum(facts.window_elements().values())) * block
    fits = (room - fixed) // each * need.block_tokens if each else 0
    return f"lower the context to {fits}" if fits > 0 else ""


def useful_blocks(need: CacheNeed) -> int:
    """More than all sequences at full length are never touched, and account is kept of each."""
    one = -(-need.context // need.block_tokens)
    return max(one, min(need.sequences * one, MOST_BLOCKS))


def _blocks(block_bytes: int, room: int, need: CacheNeed) -> int:
    useful = useful_blocks(need)
    if block_bytes == 0:  # no attention layer: blocks cost nothing
        return useful
    if need.kv_bytes is not None:
        if need.kv_bytes > room:
            raise CapacityError(
                f"memory.kv_bytes = {need.kv_bytes} and {room} bytes are left for keys and values",
                expected=f"at most {room}",
                fix="lower memory.kv_bytes or leave it to the engine",
            )
        useful, room = 1 << 60, need.kv_bytes
    blocks = min(useful, room // block_bytes)
    if blocks < 1:
        raise CapacityError(
            f"{mib(room)} are left for keys and values and {need.block_tokens} tokens need "
            f"{mib(block_bytes)}",
            fix="raise memory.kv_bytes, stop other programs or choose a smaller model",
        )
    return blocks


def mib(n: int) -> str:
    """Bytes for people: KiB below 10 MiB, GiB above 10 GiB."""
    if n >= 10 << 30:
        return f"{n / (1 << 30):.1f} GiB"
    return f"{n / MIB:.0f} MiB" if n >= 10 * MIB else f"{n / 1024:.0f} KiB"
