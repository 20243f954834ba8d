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


def decay_rate(a_log_H: Tensor) -> Tensor:
    """-exp(A_log), float64: what `decay` multiplies by, made once."""
    return -torch.exp(a_log_H.double())


def decay(a_TH: Tensor, rate_H: Tensor, dt_bias_H: Tensor) -> Tensor:
    """Log decay of gated DeltaNet, <= 0: rate * softplus(a + dt_bias) (arXiv 2412.06464)."""
    softplus = torch.nn.functional.softplus((a_TH + dt_bias_H).double(), threshold=40)
    return (rate_H * softplus).float()
