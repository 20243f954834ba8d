"""Scattering keys or values into their pool, natively."""

from __future__ import annotations

from torch import Tensor

from headrace._native import Pool
from headrace.formats.float import CODES


class NativeStoreKv:
    """Tokens may lie apart; the heads of one lie side by side."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.store_kv

    def __call__(self, x_TGD: Tensor, pool: Tensor, slots_T: Tensor) -> None:
        tokens, heads, width = x_TGD.shape
        if x_TGD.stride(1) != width:
            x_TGD = x_TGD.contiguous()
        self._run(
            x_TGD.data_ptr(),
            tokens,
            x_TGD.stride(0),
            heads * width,
            slots_T.data_ptr(),
            pool.data_ptr(),
            CODES[pool.dtype],
        )
