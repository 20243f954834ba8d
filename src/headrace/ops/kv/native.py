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
        assert heads == 1 or pool.stride(1) == width
        if x_TGD.stride(1) != width and heads > 1:
            x_TGD = x_TGD.contiguous()
        self._run(
            x_TGD.data_ptr(),
            tokens,
            x_TGD.stride(0),
            heads * width,
            slots_T.data_ptr(),
            pool.data_ptr(),
            CODES[pool.dtype],
            pool.stride(0),
        )
