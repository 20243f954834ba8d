"""Gated feed-forward experts in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.formats.packed import decode
from headrace.ops.table import Activation, ExpertRows, Routing


def activate(g: Tensor, u: Tensor | None, rows: ExpertRows) -> Tensor:
    """What stands between gate·up and down; u is None where there is no up."""
    if u is None:
        assert rows.activation == Activation.RELU_SQUARED
        return g.relu().square()
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
    parts_TXD = torch.zeros(*routing.ids_TX.shape, x_TD.shape[1])
    experts_parts(x_TD, routing.ids_TX, rows, parts_TXD)
    return combine(parts_TXD, routing)


def experts_parts(x_TD: Tensor, ids_TX: Tensor, rows: ExpertRows, parts_TXD: Tensor) -> None:
    """parts[t, k] = expert[ids[t, k]](x[t]); entries of ids < 0 are left alone."""
    for e in sorted(set(ids_TX.flatten().tolist())):
        if e < 0:
            continue
        token, rank = torch.where(ids_TX == e)
        x = x_TD[token].float()
        g = x @ decode(rows.gate[e]).T
        u = x @ decode(rows.up[e]).T if rows.up else None
        if rows.gate_bias:
            g = g + rows.gate_bias[e]
        if u is not None and rows.up_bias:
            u = u + rows.up_bias[e]
        y = activate(g, u, rows) @ decode(rows.down[e]).T
        if rows.down_bias:
            y = y + rows.down_bias[e]
        parts_TXD[token, rank] = y


def combine(parts_TXD: Tensor, routing: Routing) -> Tensor:
    """sum over k of weight[t, k] * part[t, k], added in ascending expert id; ids < 0 are
    skipped.
    """
    y_TD = torch.zeros(parts_TXD.shape[0], parts_TXD.shape[2])
    ids_TX, rank_TX = routing.ids_TX.sort(dim=1, stable=True)
    for k in range(ids_TX.shape[1]):
        token = torch.where(ids_TX[:, k] >= 0)[0]
        rank = rank_TX[token, k]
        y_TD[token] += parts_TXD[token, rank] * routing.weights_TX[token, rank, None]
    return y_TD
