"""Where the row of each (layer, expert) lies in published files, and how it will lie in memory. No
torch.

Spans keep their place within 4096-byte blocks, as direct I/O wants it. Rows whose tensors are used
as they are stored go straight to their slot; others are staged and put in order, or packed, there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from headrace.errors import CheckpointError
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
class LayerRows:
    """The rows of one layer. `parts`: gate, up and down in a slot, the same for every expert."""

    slot_bytes: int  # whole pages
    end: int  # of its parts; biases follow
    parts: tuple[Placed, ...]
    spans: tuple[tuple[Span, ...], ...]  # of each expert
    biases: tuple[Placed, ...] = ()  # of gate, up and down, in a slot: they are copied from memory
    stage_bytes: int = 0  # 0 = spans go straight to the slot
    staged: tuple[tuple[Placed, ...], ...] = ()  # of each expert, what becomes its parts,
    packings: tuple[tuple[Packing, ...], ...] = ()  # or what they are packed from

    @property
    def read_bytes(self) -> int:
        """Of one row, without the ends of blocks."""
        return sum(span.nbytes for span in self.spans[0])


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


def row_names(layer: int) -> tuple[str, ...]:
    """Canonical names of what a row consists of. Biases stay in memory: they are small."""
    return tuple(f"layers.{layer}.experts.{kind}" for kind in KINDS)


def rows_of(plan: WeightPlan, experts: Sequence[int]) -> RowSource:
    """`experts`: routed experts of each layer, 0 where dense.

    Raises CheckpointError for experts of one layer in several number formats.
    """
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
    named = [pieces[name] for name in row_names(layer)]
    for group in named:
        formats = {piece.format for piece in group}
        if len(formats) > 1:
            raise _mixed(layer, " and ".join(sorted(format_.name for format_ in formats)))
    packed = {isinstance(piece, PackedPiece) for group in named for piece in group}
    if packed == {True}:
        made = _in_parts(cast(list[tuple[PackedPiece, ...]], named), count, files)
    elif packed == {False}:
        stored = cast(list[tuple[Piece, ...]], named)
        rows = [[_part(group, expert) for group in stored] for expert in range(count)]
        groups = [_grouped(row) for row in rows]
        made = _direct(rows, groups, files) or _staged(rows, groups, files)
    else:
        raise _mixed(layer, "matrices, and others in the parts of quantised ones")
    return _with_biases(made, pieces, layer)


def _mixed(layer: int, how: str) -> CheckpointError:
    return CheckpointError(
        f"layer {layer} stores its experts as {how}",
        expected="one number format in a layer, where rows are read from disk",
        fix="use a machine whose memory holds all experts",
    )


def _with_biases(
    made: LayerRows, pieces: Mapping[str, tuple[AnyPiece, ...]], layer: int
) -> LayerRows:
    placed, cursor = [], made.end
    for name in row_names(layer):
        group = pieces.get(f"{name}.bias")
        if group is not None:
            count = group[0].shape[-1]
            placed.append(Placed(cursor, (count,), (1,), FLOAT32))
            cursor = _up(cursor + count * FLOAT32.element_bytes, PART_ALIGN)
    return replace(made, slot_bytes=_up(cursor, PAGE), biases=tuple(placed))


def _part(group: Sequence[Piece], expert: int) -> _Part:
    stacked = len(group) == 1 and len(group[0].view.shape) == 3
    piece = group[0] if stacked else group[expert]
    view, matrix = piece.view, None
    if stacked:
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


def _grouped(row: Sequence[_Part]) -> list[list[int]]:
    """Parts that are read together: of one file, with less than a block between them."""
    order = sorted(range(len(row)), key=lambda i: (row[i].piece.stored.file, row[i].start))
    groups: list[list[int]] = []
    end = 0
    for i in order:
        part = row[i]
        near = bool(groups) and row[groups[-1][0]].piece.stored.file == part.piece.stored.file
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
    rows: Sequence[Sequence[_Part]],
    groups: Sequence[Sequence[Sequence[int]]],
    files: dict[Path, int],
) -> LayerRows | None:
    """Where every row looks the same, down to its place within a block, and needs no change."""
    if any(not part.piece.in_place for row in rows for part in row):
        return None
    made = [_spans(row, group, files) for row, group in zip(rows, groups, strict=True)]
    _, places, slot_bytes = made[0]
    if any(other != places or nbytes != slot_bytes for _, other, nbytes in made):
        return None
    if any(place % part.width for part, place in zip(rows[0], places, strict=True)):
        return None
    return LayerRows(
        slot_bytes,
        slot_bytes,
        tuple(_placed(part, at) for part, at in zip(rows[0], places, strict=True)),
        tuple(tuple(spans) for spans, _, _ in made),
    )


def _staged(
    rows: Sequence[Sequence[_Part]],
    groups: Sequence[Sequence[Sequence[int]]],
    files: dict[Path, int],
) -> LayerRows:
    made = [_spans(row, group, files) for row, group in zip(rows, groups, strict=True)]
    parts, cursor = [], 0
    for part in rows[0]:
        dense = View.dense(part.view.shape)
        parts.append(Placed(cursor, dense.shape, dense.strides, part.piece.format, part.matrix))
        cursor = _up(cursor + dense.strides[0] * dense.shape[0] * part.width, PART_ALIGN)
    return LayerRows(
        _up(cursor, PAGE),
        cursor,
        tuple(parts),
        tuple(tuple(spans) for spans, _, _ in made),
        stage_bytes=max(nbytes for _, _, nbytes in made),
        staged=tuple(
            tuple(_placed(part, at) for part, at in zip(row, places, strict=True))
            for row, (_, places, _) in zip(rows, made, strict=True)
        ),
    )


def _in_parts(
    named: Sequence[Sequence[PackedPiece]], count: int, files: dict[Path, int]
) -> LayerRows:
    """Rows that become tiles: the parts of all their matrices are read into the stage."""
    parts, cursor = [], 0
    for group in named:
        form, matrix = group[0].format, (group[0].count, group[0].columns)
        tiles = View.dense((form.tiles(matrix[0]), form.tile_nbytes(matrix[1])))
        parts.append(Placed(cursor, tiles.shape, tiles.strides, form, matrix))
        cursor = _up(cursor + form.nbytes(*matrix), PART_ALIGN)
    made = [_parts_of([group[expert] for group in named], files) for expert in range(count)]
    return LayerRows(
        _up(cursor, PAGE),
        cursor,
        tuple(parts),
        tuple(spans for spans, _, _ in made),
        stage_bytes=max(nbytes for _, _, nbytes in made),
        packings=tuple(packings for _, packings, _ in made),
    )


def _parts_of(
    row: Sequence[PackedPiece], files: dict[Path, int]
) -> tuple[tuple[Span, ...], tuple[Packing, ...], int]:
    """Spans, the place of each part of each matrix, and the bytes of the stage. Each stored part is
    read once, and neighbours in a file together.
    """
    slices = {(part.file, part.offset): part for piece in row for part in piece.parts.values()}
    spans: list[Span] = []
    at: dict[tuple[Path, int], int] = {}
    cursor = 0
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
    packings = tuple(
        Packing(piece, {name: at[part.file, part.offset] for name, part in piece.parts.items()})
        for piece in row
    )
    return tuple(spans), packings, cursor


def _placed(part: _Part, at: int) -> Placed:
    return Placed(at, part.view.shape, part.view.strides, part.piece.format, part.matrix)


def _up(n: int, to: int) -> int:
    return -(-n // to) * to
