"""RMS norms in plain PyTorch: the meaning of the op. Sums are float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, *, plus_one: bool = False) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * (weight or 1 + weight), over the last axis."""
    x = x.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if weight is None:
        return y
    return y * (1.0 + weight if plus_one else weight)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms(x) * weight * silu(gate); the output norm of gated DeltaNet (arXiv 2412.06464)."""
    return rms_norm(x, weight, eps) * torch.nn.functional.silu(gate.float())
