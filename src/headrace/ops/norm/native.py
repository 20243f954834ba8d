"""Norms on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool
from headrace.ops.table import Gating


class NativeRmsNorm:
    """Reads rows [T, D] or heads [T, H, D] at any strides of T and H."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.rms_norm

    def __call__(
        self, x: Tensor, weight: Tensor | None, eps: float, *, plus_one: bool = False
    ) -> Tensor:
        y = torch.empty(x.shape)
        width = x.shape[-1]
        if x.dim() > 3 or x.stride(-1) != 1:
            x = x.reshape(-1, width).contiguous()
        address = 0 if weight is None else weight.data_ptr()
        heads = x.dim() == 3
        self._run(
            x.data_ptr(),
            x.numel() // width,
            width,
            x.stride(-2),
            address,
            eps,
            plus_one,
            y.data_ptr(),
            width,
            x.shape[1] if heads else 0,
            x.stride(0) if heads else 0,
        )
        return y


class NativeLayerNorm:
    """x is dense."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.layer_norm

    def __call__(self, x_TD: Tensor, weight_D: Tensor, bias_D: Tensor | None, eps: float) -> Tensor:
        assert x_TD.is_contiguous()
        y_TD = torch.empty(x_TD.shape)
        width = x_TD.shape[-1]
        bias = 0 if bias_D is None else bias_D.data_ptr()
        rows, weight = x_TD.numel() // width, weight_D.data_ptr()
        self._run(x_TD.data_ptr(), rows, width, weight, bias, eps, y_TD.data_ptr())
        return y_TD


class NativeGatedRmsNorm:
    """The tokens of a gate [T, H, D] may lie apart."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.gated_rms_norm

    def __call__(
        self,
        x: Tensor,
        gate: Tensor,
        weight: Tensor,
        eps: float,
        *,
        gating: Gating = Gating.SILU,
    ) -> Tensor:
        x = x.contiguous()
        assert weight.is_contiguous()
        y = torch.empty_like(x)
        width = x.shape[-1]
        apart = gate.dim() == 3 and gate.stride()[1:] == (width, 1)
        gate = gate if apart else gate.contiguous()
        self._run(
            x.data_ptr(),
            gate.data_ptr(),
            x.numel() // width,
            width,
            weight.data_ptr(),
            eps,
            y.data_ptr(),
            gate.shape[1] if apart else 0,
            gate.stride(0) if apart else 0,
            int(gating),
            weight.shape[0] if weight.dim() == 2 else 1,
        )
        return y
