"""RMS norms on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool


class NativeRmsNorm:
    """Reads rows at any even stride; others are gathered first."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.rms_norm

    def __call__(
        self, x: Tensor, weight: Tensor | None, eps: float, *, plus_one: bool = False
    ) -> Tensor:
        y = torch.empty(x.shape)
        width = x.shape[-1]
        if x.dim() != 2:
            x = x.reshape(-1, width)  # a view where the rows are evenly spaced
        if x.stride(1) != 1:
            x = x.contiguous()
        address = 0 if weight is None else weight.data_ptr()
        self._run(
            x.data_ptr(),
            x.shape[0],
            width,
            x.stride(0),
            address,
            eps,
            plus_one,
            y.data_ptr(),
            width,
        )
        return y


class NativeGatedRmsNorm:
    """rms(x) * weight * silu(gate)."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.gated_rms_norm

    def __call__(self, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, gate = x.contiguous(), gate.contiguous()
        y = torch.empty_like(x)
        width = x.shape[-1]
        rows = x.numel() // width
        self._run(x.data_ptr(), gate.data_ptr(), rows, width, weight.data_ptr(), eps, y.data_ptr())
        return y
