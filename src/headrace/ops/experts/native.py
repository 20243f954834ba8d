"""Gated feed-forward experts on the native pool. A layer is described once and found again by
identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headrace._native import ExpertLayer, Pool
from headrace.formats.float import CODES
from headrace.ops.table import ExpertRows, Routing


class _Prepared(NamedTuple):
    of: ExpertRows  # kept alive: the addresses below are its tensors'
    layer: ExpertLayer


class NativeExperts:
    """`exact`: inputs are never rounded to bfloat16."""

    def __init__(self, pool: Pool, *, exact: bool) -> None:
        self._run, self._exact = pool.experts, exact
        self._prepared: dict[int, _Prepared] = {}

    def __call__(self, x_TD: Tensor, routing: Routing, rows: ExpertRows) -> Tensor:
        ready = self._prepared.get(id(rows)) or self._prepare(rows)
        x_TD = x_TD.contiguous()
        ids, weights = routing.ids_TX.contiguous(), routing.weights_TX.contiguous()
        y_TD = torch.empty_like(x_TD)
        self._run(
            x_TD.data_ptr(),
            x_TD.shape[0],
            ids.data_ptr(),
            weights.data_ptr(),
            ids.shape[1],
            ready.layer,
            y_TD.data_ptr(),
            self._exact,
        )
        return y_TD

    def _prepare(self, rows: ExpertRows) -> _Prepared:
        gate, up, down = rows.gate[0], rows.up[0], rows.down[0]
        for group in (rows.gate, rows.up, rows.down):
            assert all(t.stride() == group[0].stride() and t.stride(1) == 1 for t in group)
        layer = ExpertLayer(
            format=CODES[gate.dtype],
            hidden=gate.shape[1],
            width=gate.shape[0],
            activation=int(rows.activation),
            gate=_addresses(rows.gate),
            up=_addresses(rows.up),
            down=_addresses(rows.down),
            gate_stride_bytes=gate.stride(0) * gate.element_size(),
            up_stride_bytes=up.stride(0) * up.element_size(),
            down_stride_bytes=down.stride(0) * down.element_size(),
            gate_bias=_addresses(rows.gate_bias),
            up_bias=_addresses(rows.up_bias),
            down_bias=_addresses(rows.down_bias),
            alpha=rows.alpha,
            limit=rows.limit,
        )
        ready = _Prepared(rows, layer)
        self._prepared[id(rows)] = ready
        return ready


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [t.data_ptr() for t in tensors]
