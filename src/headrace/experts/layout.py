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
from headrace.ops.rows import Part, spread
from headrace.ops.table import ExpertRows
from headrace.weights.ftw_index import MOST_FORMS

ALIGN = 256  # of a slot
SPAN_ALIGN = 64


@dataclass(frozen=True)
class RowLayout:
    """Rows of one layer, which have one form, or a few where their tensors differ in format. Layers
    with equal `kind` have rows that look the same in a slot.
    """

    nbytes: int  # of any row in a slot, a multiple of ALIGN
    # Of each form: gate, up, down, and their biases or nothing.
    forms: tuple[tuple[tuple[Part, ...], ...], ...]
    form_of: tuple[int, ...]  # of each expert
    spans: RowSpans
    like: ExpertRows  # activation and its numbers

    @property
    def row_bytes(self) -> int:
        """Bytes that one copy moves; on average, where rows differ."""
        return self.spans.row_nbytes

    def kind(self) -> tuple[object, ...]:
        return (self.nbytes, self.forms, self.like.activation, self.like.alpha, self.like.limit)

    def rows(self, memory: Tensor, count: int, step: int) -> ExpertRows:
        """`count` slots, `step` bytes apart from the start of `memory`, as rows of this layer: in
        its first form, and behind these in each other one.
        """
        return self._rows(memory, count, step, ())

    def own(self, memory: Tensor, step: int) -> ExpertRows:
        """Slot e as expert e."""
        return self._rows(memory, len(self.form_of), step, self.form_of)

    def _rows(self, memory: Tensor, count: int, step: int, form_of: Sequence[int]) -> ExpertRows:
        def kind(at: int) -> Sequence[Weight]:
            parts = [part for form in self.forms for part in form[at]]
            return spread(memory, parts, step, count=count, form_of=form_of) if parts else ()

        gate, up, down, *biases = (kind(at) for at in range(len(self.forms[0])))
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


@dataclass(frozen=True, slots=True)
class _Form:
    """Rows whose tensors look the same and lie in the same way to each other."""

    parts: tuple[tuple[Part, ...], ...]
    nbytes: tuple[int, ...]  # of each span, and where it goes
    offsets: tuple[int, ...]
    end: int


def layout_of(rows: ExpertRows) -> RowLayout:
    """From where the tensors of the experts lie. Tensors that interleave travel as one span."""
    kinds = (rows.gate, rows.up, rows.down, rows.gate_bias, rows.up_bias, rows.down_bias)
    known: dict[_Form, int] = {}
    form_of, sources = [], []
    for expert in range(rows.count):
        form, starts = _form([kind[expert] if kind else None for kind in kinds])
        form_of.append(known.setdefault(form, len(known)))
        sources.append(starts)
    assert len(known) <= MOST_FORMS, "rows have too many forms"
    width = max(len(form.nbytes) for form in known)
    spans = RowSpans(
        [starts + starts[:1] * (width - len(starts)) for starts in sources],
        [n for form in known for n in (*form.nbytes, *[0] * (width - len(form.nbytes)))],
        [n for form in known for n in (*form.offsets, *[0] * (width - len(form.offsets)))],
        len(known),
        form_of if len(known) > 1 else (),
    )
    nbytes = max(form.end for form in known)
    parts = tuple(form.parts for form in known)
    return RowLayout(-(-nbytes // ALIGN) * ALIGN, parts, tuple(form_of), spans, rows)


def _form(row: Sequence[Weight | None]) -> tuple[_Form, list[int]]:
    """How the tensors of one expert lie, and where its spans start."""
    present = [i for i, tensor in enumerate(row) if tensor is not None]
    own = [tensor for tensor in row if tensor is not None]
    parts: list[tuple[Part, ...]] = [()] * len(row)
    nbytes, offsets, starts, cursor = [], [], [], 0
    for group in _overlapping(own):
        start = min(own[i].data_ptr() for i in group)
        end = max(_end(own[i]) for i in group)
        nbytes.append(end - start)
        offsets.append(cursor)
        starts.append(start)
        for i in group:
            parts[present[i]] = (_part(own[i], cursor + own[i].data_ptr() - start),)
        cursor = -(-(cursor + end - start) // SPAN_ALIGN) * SPAN_ALIGN
    return _Form(tuple(parts), tuple(nbytes), tuple(offsets), cursor), starts


def _part(weight: Weight, at: int) -> Part:
    data = bytes_of(weight)
    packed = None
    if isinstance(weight, Packed):
        packed = weight.format, weight.rows, weight.columns
    return Part(at, tuple(data.shape), data.stride(), data.dtype, packed)


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
