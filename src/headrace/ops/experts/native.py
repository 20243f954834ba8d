"""Gated feed-forward experts on the native pool. A layer is described once and found again by
identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headrace._native import ExpertLayer, Pool
from headrace.formats.packed import Weight, bytes_of, code_of, stride_bytes
from headrace.ops.rows import Lazy, Several, Spread
from headrace.ops.table import ExpertRows, Routing


class _Prepared(NamedTuple):
    of: ExpertRows  # kept alive: the addresses below are its tensors'
    layer: ExpertLayer


class NativeLayers:
    """Experts as the native code knows them; they and their weights live as long as this does."""

    def __init__(self) -> None:
        self._prepared: dict[int, _Prepared] = {}

    def of(self, rows: ExpertRows) -> ExpertLayer:
        """Described at the first call for these rows."""
        known = self._prepared.get(id(rows))
        if known is None:
            known = self._prepared[id(rows)] = _Prepared(rows, expert_layer(rows))
        return known.layer


class NativeExperts:
    """`exact`: inputs are never rounded to bfloat16."""

    def __init__(self, pool: Pool, *, exact: bool) -> None:
        self._run, self._exact = pool.experts, exact
        self._layers = NativeLayers()

    def __call__(self, x_TD: Tensor, routing: Routing, rows: ExpertRows) -> Tensor:
        layer = self._layers.of(rows)
        x_TD = x_TD.contiguous()
        ids, weights = routing.ids_TX.contiguous(), routing.weights_TX.contiguous()
        y_TD = torch.empty_like(x_TD)
        self._run(
            x_TD.data_ptr(),
            x_TD.shape[0],
            ids.data_ptr(),
            weights.data_ptr(),
            ids.shape[1],
            layer,
            y_TD.data_ptr(),
            self._exact,
        )
        return y_TD


class NativeExpertsParts:
    """`exact`: inputs are never rounded to bfloat16."""

    def __init__(self, pool: Pool, *, exact: bool) -> None:
        self._run, self._exact = pool.experts_parts, exact
        self._layers = NativeLayers()

    def __call__(self, x_TD: Tensor, ids_TX: Tensor, rows: ExpertRows, parts_TXD: Tensor) -> None:
        layer = self._layers.of(rows)
        x_TD, ids_TX = x_TD.contiguous(), ids_TX.contiguous()
        assert parts_TXD.is_contiguous()
        assert parts_TXD.shape == (*ids_TX.shape, x_TD.shape[1])
        self._run(
            x_TD.data_ptr(),
            x_TD.shape[0],
            ids_TX.data_ptr(),
            ids_TX.shape[1],
            layer,
            parts_TXD.data_ptr(),
            self._exact,
        )


class NativeCombine:
    """Each token's sum is one thread's."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.combine

    def __call__(self, parts_TXD: Tensor, routing: Routing) -> Tensor:
        tokens, top_k, hidden = parts_TXD.shape
        ids, weights = routing.ids_TX.contiguous(), routing.weights_TX.contiguous()
        assert parts_TXD.is_contiguous()
        assert ids.shape == (tokens, top_k)
        y_TD = torch.empty(tokens, hidden)
        self._run(
            parts_TXD.data_ptr(),
            tokens,
            top_k,
            hidden,
            ids.data_ptr(),
            weights.data_ptr(),
            y_TD.data_ptr(),
        )
        return y_TD


_Form = tuple[tuple[int, int, int], tuple[int, int, int]]  # formats, and strides in bytes


def expert_layer(rows: ExpertRows) -> ExpertLayer:
    """Addresses and strides of one layer; the tensors must live as long as what is returned."""
    gate = rows.gate[0]
    forms, form_of = _forms(rows)
    (formats, strides), *others = forms
    return ExpertLayer(
        formats=formats,
        hidden=gate.shape[1],
        width=gate.shape[0],
        activation=int(rows.activation),
        gate=_addresses(rows.gate),
        up=_addresses(rows.up),
        down=_addresses(rows.down),
        gate_stride_bytes=strides[0],
        up_stride_bytes=strides[1],
        down_stride_bytes=strides[2],
        gate_bias=_addresses(rows.gate_bias),
        up_bias=_addresses(rows.up_bias),
        down_bias=_addresses(rows.down_bias),
        alpha=rows.alpha,
        limit=rows.limit,
        others=others,
        form_of=form_of if others else (),
    )


def _forms(rows: ExpertRows) -> tuple[list[_Form], Sequence[int]]:
    """How experts are stored, in the order in which that turns up, and of each which it is."""
    if isinstance(rows.gate, Spread):  # slots are all alike
        return [_form(rows, 0)], ()
    if isinstance(rows.gate, Several):
        firsts = [rows.gate.form_of.index(form) for form in range(len(rows.gate.spreads))]
        return [_form(rows, first) for first in firsts], rows.gate.form_of
    known: dict[_Form, int] = {}
    form_of = [known.setdefault(_form(rows, e), len(known)) for e in range(rows.count)]
    return list(known), form_of


def _form(rows: ExpertRows, expert: int) -> _Form:
    gate, down = rows.gate[expert], rows.down[expert]
    up = rows.up[expert] if rows.up else gate  # that of none means nothing
    assert all(bytes_of(weight).stride(1) == 1 for weight in (gate, up, down))
    formats = code_of(gate), code_of(up), code_of(down)
    return formats, (stride_bytes(gate), stride_bytes(up), stride_bytes(down))


def _addresses(tensors: Sequence[Weight]) -> list[int]:
    return tensors.addresses() if isinstance(tensors, Lazy) else [t.data_ptr() for t in tensors]
