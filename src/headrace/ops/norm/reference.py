"""Norms in plain PyTorch: the meaning of the ops. Sums are float32 where nothing else is said."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ops.table import Gating


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, *, plus_one: bool = False) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * (weight or 1 + weight), over the last axis."""
    x = x.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if weight is None:
        return y
    return y * (1.0 + weight if plus_one else weight)


def layer_norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias (arXiv 1607.06450). Sums are float64."""
    y_TD = torch.nn.functional.layer_norm(x_TD.double(), x_TD.shape[-1:], eps=eps).float()
    return y_TD * weight_D if bias_D is None else y_TD * weight_D + bias_D


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, gating: Gating = Gating.SILU
) -> Tensor:
    """rms(x) * weight * silu(gate), the output norm of gated DeltaNet (arXiv 2412.06464); the gate
    of Mamba 2 comes before the norm, that of Kimi Delta Attention (arXiv 2510.26692) is a sigmoid.
    """
    gate = gate.float()
    if gating == Gating.SILU_BEFORE:
        return rms_norm(x.float() * torch.nn.functional.silu(gate), weight, eps)
    opening = torch.sigmoid(gate) if gating == Gating.SIGMOID else torch.nn.functional.silu(gate)
    return rms_norm(x, weight, eps) * opening
