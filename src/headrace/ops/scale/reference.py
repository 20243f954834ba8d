"""Multipliers in plain PyTorch: the meaning of the ops."""

from __future__ import annotations

import torch
from torch import Tensor


def scale(x_TD: Tensor, factor: float, *, cap: float = 0.0) -> None:
    """x *= factor, in place; then cap * tanh(x / cap) where there is a cap (arXiv 2408.00118,
    section 2).
    """
    x_TD *= factor
    if cap:
        x_TD.copy_(cap * torch.tanh(x_TD / cap))


def scale_rows(x_THD: Tensor, by_TH: Tensor) -> None:
    """x[t, h] *= by[t, h], in place."""
    x_THD *= by_TH[..., None]


def temperature(positions_T: Tensor, span: int, strength: float, *, ahead: int = 1) -> Tensor:
    """What queries are multiplied by: 1 + strength * log(1 + floor((position + ahead) / span)),
    float32 [T, 1] (arXiv 2501.19399, as Llama 4 has it). Float64, rounded once.
    """
    spans_T = (positions_T + ahead) // span
    return (1 + strength * torch.log1p(spans_T.double())).float()[:, None]
