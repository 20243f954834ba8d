"""Planning one layer as one program on the device; the reference beside it is the meaning.

Constant cost: the work follows from the shapes, never from how many experts miss. Nothing comes
back to the host. Only this file imports triton.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.ops.table import Cache, CacheLayer, Planned
from headrace.planning.policies import DEFAULT_TERMS, Fade

# A slot's rank packs (value, row) into one number, an expert's (value, expert).
ROW_BITS = tl.constexpr(20)
ROW_MASK = tl.constexpr((1 << 20) - 1)
FREE = tl.constexpr(1 << 62)  # above every value: free slots go first
NEVER = tl.constexpr(-(1 << 63))  # empty places and spared rows

KEEP_FAST, KEEP_SLOW = (tl.constexpr(term.keep_q24) for term in DEFAULT_TERMS)
WEIGHT_FAST, WEIGHT_SLOW = (tl.constexpr(term.weight) for term in DEFAULT_TERMS)
ONE_USE = tl.constexpr(1 << 32)

IDS_AT_ONCE, SLOTS_AT_ONCE = 1024, 2048
WARPS, MANY_WARPS = 8, 16  # up to 256 experts, beyond


def plan(
    ids_TX: Tensor,
    layer: CacheLayer,
    cache: Cache,
    quota_Q: Tensor,
    out: Planned,
    *,
    staging: int = 0,
) -> None:
    """As the reference. Tensors are contiguous; at most 2^20 rows, values below 2^42."""
    rows, slots = cache.slot_of_R.shape[0], cache.row_of_S.shape[0]
    assert rows <= 1 << 20, "more rows than a rank has bits for"
    assert layer.base + layer.experts <= rows
    assert quota_Q.shape[0] >= 2
    ids = ids_TX.numel()
    block_e = _block(layer.experts)
    most = min(block_e, _block(ids))  # misses
    block_s = max(most, min(SLOTS_AT_ONCE, _block(slots)))
    _plan[(1,)](
        ids_TX,
        ids,
        layer.base,
        layer.experts,
        slots,
        staging,
        cache.slot_of_R,
        cache.row_of_S,
        cache.sums_2R,
        cache.sums_2R[1],
        cache.value_R,
        cache.clock_1,
        quota_Q,
        quota_Q.shape[0] - 1,
        out.slot_ids_TX,
        out.host_ids_TX,
        out.fill_experts_E,
        out.fill_slots_E,
        out.counts_4,
        LRU=cache.lru,
        STAGED=staging > 0,
        BLOCK_I=min(IDS_AT_ONCE, _block(ids)),
        BLOCK_E=block_e,
        BLOCK_S=block_s,
        BLOCK_M=most,
        ONE_BLOCK=slots <= block_s,
        num_warps=WARPS if block_e <= 256 else MANY_WARPS,
    )
    if layer.shift_E is not None:
        shift_TX = layer.shift_E[ids_TX.clamp(min=0).long()]
        out.slot_ids_TX.add_(shift_TX * (out.slot_ids_TX >= 0))


def observe(ids_TX: Tensor, layer: CacheLayer, cache: Cache, fade: Fade) -> None:
    """As the reference."""
    if cache.lru:
        return
    ids = ids_TX.numel()
    _observe[(1,)](
        ids_TX,
        ids,
        layer.base,
        layer.experts,
        cache.sums_2R,
        cache.sums_2R[1],
        cache.value_R,
        *fade.left_q24,
        *fade.gain_q32,
        BLOCK_I=min(IDS_AT_ONCE, _block(ids)),
        BLOCK_E=_block(layer.experts),
        num_warps=WARPS,
    )


def _block(count: int) -> int:
    """The power of two that holds so many."""
    return max(2, 1 << (count - 1).bit_length())


@triton.jit
def _uses(
    ids_ptr: tl.tensor, ids: tl.tensor, BLOCK_I: tl.constexpr, BLOCK_E: tl.constexpr
) -> tl.tensor:
    """How often each expert is named; negative ids are skipped."""
    uses = tl.zeros([BLOCK_E], tl.int32)
    for start in range(0, ids, BLOCK_I):
        at = start + tl.arange(0, BLOCK_I)
        expert = tl.load(ids_ptr + at, at < ids, -1)
        uses += tl.histogram(expert, BLOCK_E, mask=expert >= 0)
    return uses


@triton.jit
def _wanted(quota_ptr: tl.tensor, last: tl.tensor, misses: tl.tensor) -> tl.tensor:
    quota = tl.load(quota_ptr + tl.minimum(misses, last))
    wanted = tl.where(misses > last, misses * quota // last, quota)
    return tl.minimum(tl.maximum(wanted, 0), misses)


@triton.jit
def _likeliest(e: tl.tensor, missed: tl.tensor, value_ptr: tl.tensor) -> tl.tensor:
    """The place of each missed expert: the greatest value first, of equals the lowest number."""
    value = tl.load(value_ptr + e, missed, 0)
    order = tl.where(missed, (value << ROW_BITS) | (e ^ ROW_MASK), -1)
    return tl.sum((order[None, :] > order[:, None]).to(tl.int32), 1)


@triton.jit
def _count(active: tl.tensor, misses: tl.tensor, fills: tl.tensor, counts_ptr: tl.tensor) -> None:
    tl.store(counts_ptr, active)
    tl.store(counts_ptr + 1, active - misses)
    tl.store(counts_ptr + 2, fills)
    tl.store(counts_ptr + 3, misses - fills)


@triton.jit
def _store_sums(
    e: tl.tensor,
    inside: tl.tensor,
    base: tl.tensor,
    fast: tl.tensor,
    slow: tl.tensor,
    fast_ptr: tl.tensor,
    slow_ptr: tl.tensor,
    value_ptr: tl.tensor,
) -> None:
    tl.store(fast_ptr + base + e, fast, inside)
    tl.store(slow_ptr + base + e, slow, inside)
    tl.store(value_ptr + base + e, fast * WEIGHT_FAST + slow * WEIGHT_SLOW, inside)


@triton.jit
def _touch(
    e: tl.tensor,
    inside: tl.tensor,
    active: tl.tensor,
    base: tl.tensor,
    fast_ptr: tl.tensor,
    slow_ptr: tl.tensor,
    value_ptr: tl.tensor,
    clock_ptr: tl.tensor,
    LRU: tl.constexpr,
) -> None:
    if LRU:
        now = tl.load(clock_ptr) + 1
        tl.debug_barrier()  # every warp has read it
        tl.store(clock_ptr, now)
        tl.store(value_ptr + base + e, tl.zeros_like(e).to(tl.int64) + now, active)
    else:
        used = active.to(tl.int64) * ONE_USE
        fast = ((tl.load(fast_ptr + base + e, inside, 0) * KEEP_FAST) >> 24) + used
        slow = ((tl.load(slow_ptr + base + e, inside, 0) * KEEP_SLOW) >> 24) + used
        _store_sums(e, inside, base, fast, slow, fast_ptr, slow_ptr, value_ptr)


@triton.jit
def _victims(
    slots: tl.tensor,
    base: tl.tensor,
    row_of_ptr: tl.tensor,
    value_ptr: tl.tensor,
    active: tl.tensor,
    BLOCK_E: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
) -> tl.tensor:
    """The ranks of the slots to take, the first first, NEVER behind the last; one pass."""
    best = tl.full([BLOCK_M], NEVER, tl.int64)
    for start in range(0, slots, BLOCK_S):
        slot = start + tl.arange(0, BLOCK_S)
        there = slot < slots
        row = tl.load(row_of_ptr + slot, there, -1)
        held = there & (row >= 0)
        value = tl.load(value_ptr + row, held, 0)
        expert = row - base
        mine = held & (expert >= 0) & (expert < BLOCK_E)
        spared = tl.gather(active.to(tl.int32), tl.where(mine, expert, 0), 0) != 0
        rank = ~((value << ROW_BITS) | row.to(tl.int64))
        rank = tl.where(there & (row < 0), -slot.to(tl.int64) + FREE, rank)
        rank = tl.where(there & ~(mine & spared), rank, NEVER)
        if ONE_BLOCK:
            best = tl.topk(rank, BLOCK_M)
        else:
            both = tl.join(best, tl.topk(rank, BLOCK_M))
            best = tl.topk(tl.reshape(both, [2 * BLOCK_M]), BLOCK_M)
    return best


@triton.jit
def _clear(
    best: tl.tensor, fills: tl.tensor, slot_of_ptr: tl.tensor, BLOCK_M: tl.constexpr
) -> tl.tensor:
    """The slots behind the ranks; whoever lay in the first `fills` of them lies nowhere."""
    free = best > 0
    row = (~best & ROW_MASK).to(tl.int32)
    lies = ~free & (best != NEVER)
    slot = tl.load(slot_of_ptr + row, lies, 0)
    slot = tl.where(free, -best + FREE, slot.to(tl.int64)).to(tl.int32)
    tl.debug_barrier()  # every warp has read where the victims lie
    out = lies & (tl.arange(0, BLOCK_M) < fills)
    tl.store(slot_of_ptr + row, tl.full([BLOCK_M], -1, tl.int32), out)
    return slot


@triton.jit
def _rewrite(
    ids_ptr: tl.tensor,
    ids: tl.tensor,
    slot_E: tl.tensor,
    slot_ids_ptr: tl.tensor,
    host_ids_ptr: tl.tensor,
    BLOCK_I: tl.constexpr,
) -> None:
    for start in range(0, ids, BLOCK_I):
        at = start + tl.arange(0, BLOCK_I)
        expert = tl.load(ids_ptr + at, at < ids, -1)
        slot = tl.gather(slot_E, tl.maximum(expert, 0), 0)
        tl.store(slot_ids_ptr + at, tl.where(expert >= 0, slot, -1), at < ids)
        tl.store(host_ids_ptr + at, tl.where(slot < 0, expert, -1), at < ids)


@triton.jit(do_not_specialize=["ids", "base", "experts", "slots", "staging", "last"])
def _plan(
    ids_ptr: tl.tensor,
    ids: tl.tensor,
    base: tl.tensor,
    experts: tl.tensor,
    slots: tl.tensor,
    staging: tl.tensor,
    slot_of_ptr: tl.tensor,
    row_of_ptr: tl.tensor,
    fast_ptr: tl.tensor,
    slow_ptr: tl.tensor,
    value_ptr: tl.tensor,
    clock_ptr: tl.tensor,
    quota_ptr: tl.tensor,
    last: tl.tensor,
    slot_ids_ptr: tl.tensor,
    host_ids_ptr: tl.tensor,
    fill_experts_ptr: tl.tensor,
    fill_slots_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    LRU: tl.constexpr,
    STAGED: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
) -> None:
    e = tl.arange(0, BLOCK_E)
    inside = e < experts
    active = _uses(ids_ptr, ids, BLOCK_I, BLOCK_E) > 0
    slot_E = tl.load(slot_of_ptr + base + e, active, -1)
    missed = active & (slot_E < 0)
    misses = tl.sum(missed.to(tl.int32), 0)
    wanted = _wanted(quota_ptr, last, misses)
    nth = _likeliest(e, missed, value_ptr + base)
    if STAGED:
        fills = tl.minimum(wanted, staging)
        slot = slots + nth
    else:
        tl.debug_barrier()  # every warp has read the values
        _touch(e, inside, active, base, fast_ptr, slow_ptr, value_ptr, clock_ptr, LRU)
        tl.debug_barrier()  # and sees the new ones
        best = _victims(
            slots, base, row_of_ptr, value_ptr, active, BLOCK_E, BLOCK_S, BLOCK_M, ONE_BLOCK
        )
        fills = tl.minimum(wanted, tl.sum((best != NEVER).to(tl.int32), 0))
        room = _clear(best, fills, slot_of_ptr, BLOCK_M)
        slot = tl.gather(room, tl.minimum(nth, BLOCK_M - 1), 0)
    filled = missed & (nth < fills)
    if not STAGED:
        tl.store(row_of_ptr + slot, base + e, filled)
        tl.store(slot_of_ptr + base + e, slot, filled)
    tl.store(fill_experts_ptr + nth, e, filled)
    tl.store(fill_slots_ptr + nth, slot, filled)
    slot_E = tl.where(filled, slot, slot_E)
    _rewrite(ids_ptr, ids, slot_E, slot_ids_ptr, host_ids_ptr, BLOCK_I)
    _count(tl.sum(active.to(tl.int32), 0), misses, fills, counts_ptr)


@triton.jit(do_not_specialize=[1, 2, 3, 7, 8, 9, 10])
def _observe(
    ids_ptr: tl.tensor,
    ids: tl.tensor,
    base: tl.tensor,
    experts: tl.tensor,
    fast_ptr: tl.tensor,
    slow_ptr: tl.tensor,
    value_ptr: tl.tensor,
    left_fast: tl.tensor,
    left_slow: tl.tensor,
    gain_fast: tl.tensor,
    gain_slow: tl.tensor,
    BLOCK_I: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    e = tl.arange(0, BLOCK_E)
    inside = e < experts
    uses = _uses(ids_ptr, ids, BLOCK_I, BLOCK_E).to(tl.int64)
    fast = tl.load(fast_ptr + base + e, inside, 0)
    slow = tl.load(slow_ptr + base + e, inside, 0)
    fast = ((fast * left_fast) >> 24) + uses * gain_fast
    slow = ((slow * left_slow) >> 24) + uses * gain_slow
    _store_sums(e, inside, base, fast, slow, fast_ptr, slow_ptr, value_ptr)
