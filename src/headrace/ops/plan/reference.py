"""Planning one layer in plain Python, over the arrays of a device. All arithmetic is of integers,
so that every device decides alike; the policy is that of `planning.policies`.

Invariant: a slot holds at most one row, and slot_of and row_of say the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ops.table import Cache, CacheLayer, Planned
from headrace.planning.policies import DEFAULT_TERMS, KEEP_BITS, SUM_BITS, Fade


def plan(
    ids_TX: Tensor,
    layer: CacheLayer,
    cache: Cache,
    quota_Q: Tensor,
    out: Planned,
    *,
    staging: int = 0,
) -> None:
    """Active experts in ascending id; of the misses, those worth most before this touch are filled,
    equal ones in ascending id. Fills take free slots in ascending number, then those of the
    resident, inactive rows that are worth least, the least first; what finds none is the host's.
    """
    active = sorted({e for e in ids_TX.flatten().tolist() if e >= 0})
    assert not active or active[-1] < layer.experts, "an expert that the layer does not have"
    slot_of = {e: int(cache.slot_of_R[layer.base + e]) for e in active}
    misses = [e for e in active if slot_of[e] < 0]
    wanted = _wanted(quota_Q.tolist(), len(misses))
    likeliest = sorted(misses, key=lambda e: (-int(cache.value_R[layer.base + e]), e))
    if staging > 0:
        first = cache.row_of_S.shape[0]
        slots = list(range(first, first + staging))
    else:
        _touch(active, layer, cache)
        slots = _slots_for(wanted, {layer.base + e for e in active}, cache)
    fills = dict(zip(likeliest[:wanted], slots, strict=False))
    if staging == 0:
        for e, slot in fills.items():
            evicted = int(cache.row_of_S[slot])
            if evicted >= 0:
                cache.slot_of_R[evicted] = -1
            cache.row_of_S[slot] = layer.base + e
            cache.slot_of_R[layer.base + e] = slot
    _write(out, ids_TX, slot_of | fills, fills, layer.shift_E)
    hits = len(active) - len(misses)
    counts = [len(active), hits, len(fills), len(misses) - len(fills)]
    out.counts_4.copy_(torch.tensor(counts, dtype=torch.int32))


def observe(ids_TX: Tensor, layer: CacheLayer, cache: Cache, fade: Fade) -> None:
    """sum = (sum * left >> 24) + uses * gain for every row of the layer, and its value anew."""
    if cache.lru:
        return
    ids = ids_TX[ids_TX >= 0].long()
    uses_E = torch.bincount(ids, minlength=layer.experts)
    assert uses_E.shape[0] == layer.experts, "an expert that the layer does not have"
    rows = slice(layer.base, layer.base + layer.experts)
    for sums, left, gain in zip(cache.sums_2R, fade.left_q24, fade.gain_q32, strict=True):
        sums[rows] = ((sums[rows] * left) >> KEEP_BITS) + uses_E * gain
    _revalue(rows, cache)


def _wanted(quota: list[int], misses: int) -> int:
    """Fills for so many misses; beyond the table's end, its last share."""
    last = len(quota) - 1
    assert last >= 1, "a quota for 0 and for 1 miss at least"
    wanted = quota[misses] if misses <= last else misses * quota[last] // last
    return min(max(wanted, 0), misses)


def _touch(active: list[int], layer: CacheLayer, cache: Cache) -> None:
    rows = slice(layer.base, layer.base + layer.experts)
    used = torch.tensor([layer.base + e for e in active], dtype=torch.long)
    if cache.lru:
        cache.clock_1.add_(1)
        cache.value_R[used] = cache.clock_1
        return
    for sums, term in zip(cache.sums_2R, DEFAULT_TERMS, strict=True):
        sums[rows] = (sums[rows] * term.keep_q24) >> KEEP_BITS
        sums[used] += 1 << SUM_BITS
    _revalue(rows, cache)


def _revalue(rows: slice, cache: Cache) -> None:
    cache.value_R[rows] = 0
    for sums, term in zip(cache.sums_2R, DEFAULT_TERMS, strict=True):
        cache.value_R[rows] += term.weight * sums[rows]


def _slots_for(wanted: int, spared: set[int], cache: Cache) -> list[int]:
    """Free slots, then those of the least valuable rows; fewer than `wanted` if there are not."""
    row_of = cache.row_of_S.tolist()
    free = [slot for slot, row in enumerate(row_of) if row < 0]
    resident = [row for row in row_of if row >= 0 and row not in spared]
    resident.sort(key=lambda row: (int(cache.value_R[row]), row))
    return (free + [int(cache.slot_of_R[row]) for row in resident])[:wanted]


def _write(
    out: Planned,
    ids_TX: Tensor,
    slot_of: dict[int, int],
    fills: dict[int, int],
    shift_E: Tensor | None,
) -> None:
    here = [[slot_of.get(e, -1) for e in row] for row in ids_TX.tolist()]
    host = [[e if slot_of.get(e, 0) < 0 else -1 for e in row] for row in ids_TX.tolist()]
    out.slot_ids_TX.copy_(torch.tensor(here, dtype=torch.int32).view(ids_TX.shape))
    if shift_E is not None:
        shift_TX = shift_E[ids_TX.clamp(min=0).long()]
        out.slot_ids_TX.add_(torch.where(out.slot_ids_TX < 0, 0, shift_TX))
    out.host_ids_TX.copy_(torch.tensor(host, dtype=torch.int32).view(ids_TX.shape))
    for i, (e, slot) in enumerate(fills.items()):
        out.fill_experts_E[i] = e
        out.fill_slots_E[i] = slot
