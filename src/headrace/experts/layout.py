"""How a row, which is every tensor of one expert, lies on the host and in a slot.

A slot holds the same bytes in the same strides, so that one copy serves every kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from headrace._native import RowSpans
from headrace.formats.packed import Packed, Weight, bytes_of
from headrace.ops.rows import Part, Spread
from headrace.ops.table import ExpertRows

ALIGN = 256  # of a slot
SPAN_ALIGN = 64


@dataclass(frozen=True)
class RowLayout:
    """Rows of one layer. Layers with equal `kind` have rows that look the same in a slot."""

    nbytes: int  # of a row in a slot, a multiple of ALIGN
    parts: tuple[tuple[Part, ...], ...]  # gate, up, down, and their biases or nothing
    spans: RowSpans
    like: ExpertRows  # activation and its numbers

    @property
    def row_bytes(self) -> int:
        """Bytes that one copy moves."""
        return self.spans.row_nbytes

    def kind(self) -> tuple[object, ...]:
        return (self.nbytes, self.parts, self.like.activation, self.like.alpha, self.like.limit)

    def rows(self, memory: Tensor, count: int, step: int) -> ExpertRows:
        """`count` slots, `step` bytes apart from the start of `memory`, as rows of this layer."""
        kinds = [Spread(memory, parts[0], count, step) if parts else () for parts in self.parts]
        gate, up, down, *biases = kinds
        gate_bias, up_bias, down_bias = cast(list[Sequence[Tensor]], biases)  # never packed
        return replace(
            self.like,
            gate=gate,
            up=up,
            down=down,
            gate_bias=gate_bias,
            up_bias=up_bias,
            down_bias=down_bias,
        )


def layout_of(rows: ExpertRows) -> RowLayout:
    """From where the tensors of the experts lie. Tensors that interleave travel as one span."""
    kinds = (rows.gate, rows.up, rows.down, rows.gate_bias, rows.up_bias, rows.down_bias)
    present = [i for i, kind in enumerate(kinds) if kind]
    first = [kinds[i][0] for i in present]
    groups = _overlapping(first)
    nbytes, offsets = [], []
    parts: list[tuple[Part, ...]] = [()] * len(kinds)
    cursor = 0
    for group in groups:
        start = min(first[i].data_ptr() for i in group)
        end = max(_end(first[i]) for i in group)
        nbytes.append(end - start)
        offsets.append(cursor)
        for i in group:
            at = cursor + first[i].data_ptr() - start
            parts[present[i]] = (_part(first[i], at),)
        cursor = -(-(cursor + end - start) // SPAN_ALIGN) * SPAN_ALIGN
    sources, within = [], _within(first, groups)
    for expert in range(rows.count):
        own = [kinds[i][expert] for i in present]
        assert _within(own, groups) == within, "rows differ in layout"
        sources.append([min(own[i].data_ptr() for i in group) for group in groups])
    spans = RowSpans(sources, nbytes, offsets)
    return RowLayout(-(-cursor // ALIGN) * ALIGN, tuple(parts), spans, rows)


def _part(weight: Weight, at: int) -> Part:
    data = bytes_of(weight)
    packed = None
    if isinstance(weight, Packed):
        packed = weight.format, weight.rows, weight.columns
    return Part(at, tuple(data.shape), data.stride(), data.dtype, packed)


def _within(tensors: Sequence[Weight], groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """First byte and end of each tensor within its group."""
    starts = [min(tensors[i].data_ptr() for i in group) for group in groups]
    return [
        (tensors[i].data_ptr() - start, _end(tensors[i]) - start)
        for start, group in zip(starts, groups, strict=True)
        for i in group
    ]


def _end(weight: Weight) -> int:
    tensor = bytes_of(weight)
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlapping(tensors: Sequence[Weight]) -> list[list[int]]:
    """Indices of tensors whose bytes interleave, grouped; in order, wherever they lie."""
    order = sorted(range(len(tensors)), key=lambda i: tensors[i].data_ptr())
    groups: list[list[int]] = []
    end = 0
    for i in order:
        if groups and tensors[i].data_ptr() < end:
            groups[-1].append(i)
        else:
            groups.append([i])
        end = max(end, _end(tensors[i]))
    return sorted(sorted(group) for group in groups)
