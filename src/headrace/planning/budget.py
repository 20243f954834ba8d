"""How free RAM is divided: weights, a reserve, recurrent state, the rest for KV. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import CapacityError
from headrace.planning.facts import ModelFacts

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What the caches of one model are asked to hold."""

    context: int  # tokens of the longest sequence
    sequences: int  # at once
    block_tokens: int
    element_bytes: int  # of keys and values
    kv_bytes: int | None = None  # None = as much as is useful and fits


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes by purpose, and the counts that follow from them."""

    free: int
    weights: int
    reserve: int
    state_bytes: int
    kv_bytes: int
    state_slots: int  # 0 = the model has no recurrent state
    kv_blocks: int
    block_tokens: int

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_tokens

    def explain(self) -> str:
        parts = [f"{mib(self.free)} free", f"{mib(self.weights)} weights"]
        parts.append(f"{mib(self.reserve)} reserve")
        if self.state_slots:
            parts.append(f"{mib(self.state_bytes)} recurrent state")
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
    state_bytes, slots = _state(facts, room, need)
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


def _state(facts: ModelFacts, room: int, need: CacheNeed) -> tuple[int, int]:
    """(bytes, slots): one slot per sequence, in at most a quarter of the room; at least one."""
    each = facts.state_bytes_per_sequence()
    if each == 0:
        return 0, 0
    if each > room:
        raise CapacityError(
            f"the state of one sequence needs {mib(each)} and {mib(room)} are left for caches",
            fix="stop other programs or choose a smaller model",
        )
    slots = max(1, min(need.sequences, room // 4 // each))
    return slots * each, slots


def _blocks(block_bytes: int, room: int, need: CacheNeed) -> int:
    useful = need.sequences * -(-need.context // need.block_tokens)
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
