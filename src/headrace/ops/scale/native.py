"""Multipliers on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool


class NativeScale:
    """x is dense."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.scale

    def __call__(self, x_TD: Tensor, factor: float, *, cap: float = 0.0) -> None:
        assert x_TD.is_contiguous()
        width = x_TD.shape[-1]
        self._run(x_TD.data_ptr(), x_TD.numel() // width, width, factor, cap)


class NativeScaleRows:
    """Rows lie anywhere; a number may stand for all heads of a token."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.scale_rows

    def __call__(self, x_THD: Tensor, by_TH: Tensor) -> None:
        tokens, heads, width = x_THD.shape
        assert x_THD.stride(2) == 1 or width == 1
        self._run(
            x_THD.data_ptr(),
            tokens,
            heads,
            width,
            x_THD.stride(0),
            x_THD.stride(1),
            by_TH.data_ptr(),
            by_TH.stride(0),
            by_TH.stride(1) if by_TH.shape[1] > 1 else 0,
        )


class NativeTemperature:
    """Positions are dense."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.temperature

    def __call__(
        self, positions_T: Tensor, span: int, strength: float, *, ahead: int = 1
    ) -> Tensor:
        tokens = positions_T.shape[0]
        y_T1 = torch.empty(tokens, 1)
        self._run(positions_T.data_ptr(), tokens, span, strength, y_T1.data_ptr(), ahead)
        return y_T1
