"""Elementwise gates, in plain PyTorch on every device.

Transcendental functions run in float64 and round once: vector and scalar code then agree to the
bit, so a token's result does not depend on how many others share its step.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """float32 in, float32 out."""
    return torch.sigmoid(x.double()).float()


def decay(a_TH: Tensor, a_log_H: Tensor, dt_bias_H: Tensor) -> Tensor:
    """Log decay of gated DeltaNet, <= 0: -exp(A_log) * softplus(a + dt_bias) (arXiv 2412.06464)."""
    x = (a_TH + dt_bias_H).double()
    softplus = torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs()))
    return (-torch.exp(a_log_H.double()) * softplus).float()
