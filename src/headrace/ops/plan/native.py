"""Planning on the native pool: one call over addresses, so that it is part of a tape."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool
from headrace.ops.table import Cache, CacheLayer, Planned
from headrace.planning.policies import Fade


class NativePlan:
    """All tensors are dense; the decisions are the reference's, bit for bit."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.plan

    def __call__(
        self,
        ids_TX: Tensor,
        layer: CacheLayer,
        cache: Cache,
        quota_Q: Tensor,
        out: Planned,
        *,
        staging: int = 0,
    ) -> None:
        assert quota_Q.dtype == torch.int32
        assert cache.value_R.dtype == torch.int64
        self._run(
            ids=_address(ids_TX),
            tokens=ids_TX.shape[0],
            top_k=ids_TX.shape[1],
            base=layer.base,
            experts=layer.experts,
            slot_of=_address(cache.slot_of_R),
            rows=cache.slot_of_R.shape[0],
            row_of=_address(cache.row_of_S),
            slots=cache.row_of_S.shape[0],
            sums=_address(cache.sums_2R),
            value=_address(cache.value_R),
            clock=_address(cache.clock_1),
            lru=cache.lru,
            quota=_address(quota_Q),
            quotas=quota_Q.shape[0],
            slot_ids=_address(out.slot_ids_TX),
            host_ids=_address(out.host_ids_TX),
            fill_experts=_address(out.fill_experts_E),
            fill_slots=_address(out.fill_slots_E),
            counts=_address(out.counts_4),
            staging=staging,
            shift=0 if layer.shift_E is None else _address(layer.shift_E),
        )


class NativeObserve:
    """All tensors are dense."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.observe

    def __call__(self, ids_TX: Tensor, layer: CacheLayer, cache: Cache, fade: Fade) -> None:
        if cache.lru:
            return
        left_fast, left_slow = fade.left_q24
        gain_fast, gain_slow = fade.gain_q32
        self._run(
            ids=_address(ids_TX),
            tokens=ids_TX.shape[0],
            top_k=ids_TX.shape[1],
            base=layer.base,
            experts=layer.experts,
            rows=cache.slot_of_R.shape[0],
            sums=_address(cache.sums_2R),
            value=_address(cache.value_R),
            left_q24=(left_fast, left_slow),
            gain_q32=(gain_fast, gain_slow),
        )


def _address(dense: Tensor) -> int:
    assert dense.is_contiguous()
    return dense.data_ptr()
