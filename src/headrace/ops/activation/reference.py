"""Elementwise gates, limits and order in plain PyTorch: the meaning of the ops. Float64, rounded
once.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """float32 in, float32 out."""
    return torch.sigmoid(x.double()).float()


def gate(x: Tensor, gate: Tensor) -> None:
    """x *= sigmoid(gate), in place."""
    x *= sigmoid(gate)


def clamp(x: Tensor, limit: float) -> None:
    """Into [-limit, limit], in place."""
    x.clamp_(-limit, limit)


def multiply(x_TC: Tensor, by_TC: Tensor) -> Tensor:
    """Elementwise."""
    return x_TC * by_TC


def arrange(x_TN: Tensor, order_M: Tensor) -> Tensor:
    """y[:, i] = x[:, order[i]]."""
    return x_TN[:, order_M.long()]


def decay_rate(a_log_H: Tensor) -> Tensor:
    """-exp(A_log), float64: what `decay` multiplies by, made once."""
    return -torch.exp(a_log_H.double())


def decay(a_TH: Tensor, rate_H: Tensor, dt_bias_H: Tensor) -> Tensor:
    """Log decay of gated DeltaNet, <= 0: rate * softplus(a + dt_bias) (arXiv 2412.06464)."""
    softplus = torch.nn.functional.softplus((a_TH + dt_bias_H).double(), threshold=40)
    return (rate_H * softplus).float()
