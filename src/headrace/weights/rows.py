"""Where the row of each (layer, expert) lies in published files, and how it will lie in memory. No
torch.

Spans keep their place within 4096-byte blocks, as direct I/O wants it. Rows whose tensors are used
as they are stored go straight to their slot; others are staged and put in order, or packed, there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.formats.format import FLOAT32, Format
from headrace.weights.names import View
from headrace.weights.pieces import AnyPiece, PackedPiece, Piece
from headrace.weights.plan import WeightPlan

PAGE = 4096
PART_ALIGN = 64  # of a tensor that is put in order
KINDS = ("gate", "up", "down")


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file and where they go, counted from the start of a slot or of a stage."""

    file: int
    offset: int
    nbytes: int
    to: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor within a slot or a stage: byte offset of its first element, strides in elements.

    Packed ones are bytes, [tiles, bytes of a tile], of a `matrix` of so many rows and columns.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: Format
    matrix: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Packing:
    """A matrix that is packed on arrival, and where each of its parts lies in the stage."""

    piece: PackedPiece
    at: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RowForm:
    """How a row lies in a slot: gate, up where there is one, and down, then their biases, copied
    from memory.
    """

    parts: tuple[Placed, ...]
    end: int
    biases: tuple[Placed, ...] = ()

    @property
    def slot_bytes(self) -> int:
        """Whole pages."""
        return _up(self.end, PAGE)


@dataclass(frozen=True, slots=True)
class LayerRows:
    """The rows of one layer: all in one form, or in a few where their tensors differ in format."""

    slot_bytes: int  # whole pages, for a row of any form
    forms: tuple[RowForm, ...]
    form_of: tuple[int, ...]  # of each expert
    spans: tuple[tuple[Span, ...], ...]  # of each expert
    stage_bytes: int = 0  # 0 = spans go straight to the slot
    staged: tuple[tuple[Placed | Packing, ...], ...] = ()  # of each expert, what becomes its parts

    @property
    def read_bytes(self) -> int:
        """Of one row, without the ends of blocks; on average, where rows differ."""
        total = sum(span.nbytes for spans in self.spans for span in spans)
        return -(-total // len(self.spans))

    def form(self, expert: int) -> RowForm:
        return self.forms[self.form_of[expert]]


@dataclass(frozen=True, slots=True)
class RowSource:
    """All rows of a model. A dense layer has none."""

    files: tuple[Path, ...]
    layers: tuple[LayerRows | None, ...]

    @property
    def slot_bytes(self) -> int:
        """A slot that holds a row of any layer."""
        return max((rows.slot_bytes for rows in self.layers if rows), default=0)

    @property
    def uneven_bytes(self) -> int:
        """What slots as wide as the widest row of their layer leave empty."""
        wasted = 0
        for rows in (rows for rows in self.layers if rows):
            wasted += sum(rows.slot_bytes - rows.forms[form].slot_bytes for form in rows.form_of)
        return wasted

    @property
    def stage_bytes(self) -> int:
        return max((rows.stage_bytes for rows in self.layers if rows), default=0)


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of one expert: where its first byte lies and how far it goes. `view` is of bytes
    where it is packed.
    """

    piece: Piece
    view: View
    start: int
    end: int
    matrix: tuple[int, int] | None = None

    @property
    def width(self) -> int:
        """Bytes of an element of `view`."""
        return self.piece.format.element_bytes or 1


_Row = Sequence["_Part | PackedPiece"]


def row_names(layer: int) -> tuple[str, ...]:
    """Canonical names of what a row consists of, but for an up that it may lack. Biases stay in
    memory: they are small.
    """
    return tuple(f"layers.{layer}.experts.{kind}" for kind in KINDS)


def rows_of(plan: WeightPlan, experts: Sequence[int]) -> RowSource:
    """`experts`: routed experts of each layer, 0 where dense."""
    files: dict[Path, int] = {}
    layers = [
        _layer(plan.pieces, layer, count, files) if count else None
        for layer, count in enumerate(experts)
    ]
    return RowSource(tuple(files), tuple(layers))


def without_rows(plan: WeightPlan, experts: Sequence[int]) -> WeightPlan:
    """What is left to be read when rows are read by themselves."""
    gone = {name for layer, count in enumerate(experts) if count for name in row_names(layer)}
    pieces = {name: group for name, group in plan.pieces.items() if name not in gone}
    kept = {
        piece.stored.name
        for group in pieces.values()
        for piece in group
        if isinstance(piece, Piece)
    }
    stored = tuple(tensor for tensor in plan.stored if tensor.name in kept)
    return WeightPlan(pieces, stored, plan.copied & kept)


def _layer(
    pieces: Mapping[str, tuple[AnyPiece, ...]], layer: int, count: int, files: dict[Path, int]
) -> LayerRows:
    named = [pieces[name] for name in row_names(layer) if name in pieces]
    rows = [[_matrix(group, expert) for group in named] for expert in range(count)]
    groups = [_grouped(row) for row in rows]
    made = _direct(rows, groups, files) or _staged(rows, groups, files)
    return _with_biases(made, pieces, layer)


def _with_biases(
    made: LayerRows, pieces: Mapping[str, tuple[AnyPiece, ...]], layer: int
) -> LayerRows:
    forms = []
    for form in made.forms:
        placed, cursor = [], form.end
        for name in row_names(layer):
            group = pieces.get(f"{name}.bias")
            if group is not None:
                count = group[0].shape[-1]
                placed.append(Placed(cursor, (count,), (1,), FLOAT32))
                cursor = _up(cursor + count * FLOAT32.element_bytes, PART_ALIGN)
        forms.append(RowForm(form.parts, cursor, tuple(placed)))
    return replace(made, slot_bytes=max(form.slot_bytes for form in forms), forms=tuple(forms))


def _matrix(group: Sequence[AnyPiece], expert: int) -> _Part | PackedPiece:
    stacked = len(group) == 1 and len(group[0].shape) == 3
    piece = group[0] if stacked else group[expert]
    return piece if isinstance(piece, PackedPiece) else _part(piece, expert if stacked else None)


def _part(piece: Piece, expert: int | None) -> _Part:
    """A tensor, or that of one expert of a stack."""
    view, matrix = piece.view, None
    if expert is not None:
        view = View(view.shape[1:], view.strides[1:], view.start + expert * view.strides[0])
    if piece.format.packed:
        matrix = view.shape[0], view.shape[1]
        view = _tiles(piece.format, view)
    width = piece.format.element_bytes or 1
    start = piece.stored.offset + view.start * width
    last = sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))
    return _Part(piece, view, start, start + (last + 1) * width, matrix)


def _tiles(format_: Format, view: View) -> View:
    """The bytes of a packed matrix: whole rows, or whole and dense where tiles have several."""
    rows, columns = view.shape
    nbytes = format_.tile_nbytes(columns)
    if format_.tile_rows > 1:
        assert view.start == 0, "tiles of several rows are stored whole"
        return View.dense((format_.tiles(rows), nbytes))
    step, _ = (n // columns * nbytes for n in view.strides)
    return View((rows, nbytes), (step, 1), view.start // columns * nbytes)


def _grouped(row: _Row) -> list[list[int]]:
    """Parts that are read together: of one file, with less than a block between them. What is
    packed on arrival is in none.
    """
    parts = {i: part for i, part in enumerate(row) if isinstance(part, _Part)}
    order = sorted(parts, key=lambda i: (parts[i].piece.stored.file, parts[i].start))
    groups: list[list[int]] = []
    end = 0
    for i in order:
        part = parts[i]
        near = bool(groups) and parts[groups[-1][0]].piece.stored.file == part.piece.stored.file
        if near and part.start < end + PAGE:
            groups[-1].append(i)
            end = max(end, part.end)
        else:
            groups.append([i])
            end = part.end
    return groups


def _spans(
    row: Sequence[_Part], groups: Sequence[Sequence[int]], files: dict[Path, int]
) -> tuple[list[Span], list[int], int]:
    """Spans, the place of each part, and the bytes that it takes: every group on pages of its
    own.
    """
    spans, places, cursor = [], [0] * len(row), 0
    for group in groups:
        start, end = min(row[i].start for i in group), max(row[i].end for i in group)
        to = cursor + start % PAGE
        file = files.setdefault(row[group[0]].piece.stored.file, len(files))
        spans.append(Span(file, start, end - start, to))
        for i in group:
            places[i] = to + row[i].start - start
        cursor = _up(to + end - start, PAGE)
    return spans, places, cursor


def _direct(
    rows: Sequence[_Row], groups: Sequence[Sequence[Sequence[int]]], files: dict[Path, int]
) -> LayerRows | None:
    """Where rows of the same formats look the same, down to their place within a block, and need no
    change.
    """
    forms: dict[RowForm, int] = {}
    of_formats: dict[tuple[Format, ...], RowForm] = {}
    form_of, all_spans = [], []
    for row, group in zip(rows, groups, strict=True):
        own = [part for part in row if isinstance(part, _Part) and part.piece.in_place]
        if len(own) < len(row):
            return None
        spans, places, nbytes = _spans(own, group, files)
        if any(place % part.width for part, place in zip(own, places, strict=True)):
            return None
        placed = (_placed(part, at) for part, at in zip(own, places, strict=True))
        form = RowForm(tuple(placed), nbytes)
        if of_formats.setdefault(tuple(part.piece.format for part in own), form) != form:
            return None
        form_of.append(forms.setdefault(form, len(forms)))
        all_spans.append(tuple(spans))
    slot_bytes = max(form.end for form in forms)
    return LayerRows(slot_bytes, tuple(forms), tuple(form_of), tuple(all_spans))


def _staged(
    rows: Sequence[_Row], groups: Sequence[Sequence[Sequence[int]]], files: dict[Path, int]
) -> LayerRows:
    """What is read lies in a stage first, and is put in order, or packed, from there."""
    forms: dict[RowForm, int] = {}
    form_of, all_spans, staged, stage_bytes = [], [], [], 0
    for row, group in zip(rows, groups, strict=True):
        form = _in_order(row)
        form_of.append(forms.setdefault(form, len(forms)))
        at = [i for i, part in enumerate(row) if isinstance(part, _Part)]
        own = [part for part in row if isinstance(part, _Part)]
        spans, places, cursor = _spans(own, [[at.index(i) for i in one] for one in group], files)
        whole = [piece for piece in row if isinstance(piece, PackedPiece)]
        more, packings, cursor = _parts_of(whole, files, cursor)
        made: dict[int, Placed | Packing] = {
            i: _placed(part, place) for i, part, place in zip(at, own, places, strict=True)
        }
        left = iter(packings)
        staged.append(tuple(made[i] if i in made else next(left) for i in range(len(row))))
        all_spans.append((*spans, *more))
        stage_bytes = max(stage_bytes, cursor)
    slot_bytes = max(form.end for form in forms)
    return LayerRows(
        slot_bytes, tuple(forms), tuple(form_of), tuple(all_spans), stage_bytes, tuple(staged)
    )


def _in_order(row: _Row) -> RowForm:
    """Dense, one behind the other."""
    parts, cursor = [], 0
    for part in row:
        if isinstance(part, PackedPiece):
            form, matrix = part.format, (part.count, part.columns)
            dense = View.dense((form.tiles(part.count), form.tile_nbytes(part.columns)))
            nbytes = form.nbytes(*matrix)
            parts.append(Placed(cursor, dense.shape, dense.strides, form, matrix))
        else:
            dense = View.dense(part.view.shape)
            nbytes = dense.strides[0] * dense.shape[0] * part.width
            parts.append(Placed(cursor, dense.shape, dense.strides, part.piece.format, part.matrix))
        cursor = _up(cursor + nbytes, PART_ALIGN)
    return RowForm(tuple(parts), cursor)


def _parts_of(
    row: Sequence[PackedPiece], files: dict[Path, int], cursor: int
) -> tuple[list[Span], list[Packing], int]:
    """Spans behind `cursor`, the place of each part of each matrix, and the bytes of the stage.
    Each stored part is read once, and neighbours in a file together.
    """
    slices = {(part.file, part.offset): part for piece in row for part in piece.parts.values()}
    spans: list[Span] = []
    at: dict[tuple[Path, int], int] = {}
    for (path, offset), part in sorted(slices.items()):
        file = files.setdefault(path, len(files))
        last = spans[-1] if spans else None
        if last is not None and last.file == file and offset < last.offset + last.nbytes + PAGE:
            spans[-1] = replace(last, nbytes=max(last.nbytes, offset + part.nbytes - last.offset))
        else:
            spans.append(Span(file, offset, part.nbytes, cursor + offset % PAGE))
        span = spans[-1]
        at[path, offset] = span.to + offset - span.offset
        cursor = _up(span.to + span.nbytes, PAGE)
    packings = [
        Packing(piece, {name: at[part.file, part.offset] for name, part in piece.parts.items()})
        for piece in row
    ]
    return spans, packings, cursor


def _placed(part: _Part, at: int) -> Placed:
    return Placed(at, part.view.shape, part.view.strides, part.piece.format, part.matrix)


def _up(n: int, to: int) -> int:
    return -(-n // to) * to
