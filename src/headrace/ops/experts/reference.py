"""Gated feed-forward experts in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.formats.float import decode
from headrace.ops.table import Activation, ExpertRows, Routing


def activate(g: Tensor, u: Tensor, rows: ExpertRows) -> Tensor:
    """What stands between gate·up and down."""
    if rows.activation == Activation.SILU:
        return torch.nn.functional.silu(g) * u
    if rows.activation == Activation.GELU_TANH:
        return torch.nn.functional.gelu(g, approximate="tanh") * u
    g = g.clamp(max=rows.limit)
    u = u.clamp(-rows.limit, rows.limit)
    return g * torch.sigmoid(rows.alpha * g) * (u + 1)


def experts(x_TD: Tensor, routing: Routing, rows: ExpertRows) -> Tensor:
    """sum over k of weight[t, k] * expert[ids[t, k]](x[t]), added in ascending expert id; ids < 0
    are skipped.
    """
    y_TD = torch.zeros(x_TD.shape)
    for e in range(rows.count):
        token, rank = torch.where(routing.ids_TX == e)
        if token.numel() == 0:
            continue
        x = x_TD[token].float()
        g, u = x @ decode(rows.gate[e]).T, x @ decode(rows.up[e]).T
        if rows.gate_bias:
            g, u = g + rows.gate_bias[e], u + rows.up_bias[e]
        y = activate(g, u, rows) @ decode(rows.down[e]).T
        if rows.down_bias:
            y = y + rows.down_bias[e]
        y_TD.index_add_(0, token, y * routing.weights_TX[token, rank, None])
    return y_TD
