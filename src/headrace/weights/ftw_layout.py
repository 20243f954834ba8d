"""Where everything of a plan goes in an FTW folder: dense tensors first, then the rows of each
layer by expert. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import CheckpointError
from headrace.formats.format import FLOAT32
from headrace.formats.words import word_of
from headrace.weights.ftw_index import (
    BLOCK,
    KINDS,
    MOST_FORMS,
    PART_ALIGN,
    Dense,
    ExpertLayer,
    Part,
    Shard,
    Span,
    nbytes_of,
    row_bytes,
)
from headrace.weights.names import View
from headrace.weights.pieces import AnyPiece, Piece
from headrace.weights.plan import WeightPlan

SHARD_BYTES = 4 << 30  # a larger entry has a shard of its own
_EXPERTS = re.compile(r"layers\.(\d+)\.experts\.(.+)")


@dataclass(frozen=True, slots=True)
class Copy:
    """A piece of the source that becomes `nbytes` at `offset` of an entry."""

    piece: AnyPiece
    offset: int
    nbytes: int
    widen: bool  # to float32


@dataclass(frozen=True, slots=True)
class Entry:
    """What is written and summed up as a whole. The checksum is not known yet."""

    name: str
    span: Span
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Entries in the order of the files; `tensors` and `experts` still lack their checksums."""

    shards: tuple[Shard, ...]
    entries: tuple[Entry, ...]
    tensors: dict[str, Dense]
    experts: dict[int, ExpertLayer]


def lay_out(plan: WeightPlan) -> Layout:
    """Raises CheckpointError where the experts of a layer differ in a way that rows cannot have."""
    shelf = _Shelf()
    entries: list[Entry] = []
    tensors: dict[str, Dense] = {}
    stacks: dict[int, dict[str, list[AnyPiece]]] = {}
    for name, pieces in plan.pieces.items():
        named = _EXPERTS.fullmatch(name)
        if named:
            stacks.setdefault(int(named[1]), {})[named[2]] = list(_by_expert(named[2], pieces))
            continue
        (piece,) = pieces
        nbytes = plan.nbytes(name)
        span = shelf.place(nbytes)
        tensors[name] = Dense(word_of(piece.format), piece.shape, span)
        entries.append(Entry(name, span, (Copy(piece, 0, nbytes, widen=False),)))
    experts: dict[int, ExpertLayer] = {}
    for layer, stack in stacks.items():
        forms: dict[tuple[Part, ...], int] = {}
        rows, form_of = [], []
        for expert in range(len(stack["gate"])):
            parts = tuple(_parts({kind: pieces[expert] for kind, pieces in stack.items()}))
            span = shelf.place(row_bytes(parts))
            copies = tuple(_copy(stack[p.kind][expert], p) for p in parts)
            entries.append(Entry(f"layer {layer} expert {expert}", span, copies))
            rows.append(span)
            form_of.append(forms.setdefault(parts, len(forms)))
        if len(forms) > MOST_FORMS:
            raise CheckpointError(
                f"layer {layer}: {len(forms)} experts that differ in formats",
                expected=f"at most {MOST_FORMS} kinds of them",
                fix="serve the source as it is",
            )
        experts[layer] = ExpertLayer(tuple(forms), tuple(rows), tuple(form_of))
    return Layout(shelf.shards(), tuple(entries), tensors, experts)


class _Shelf:
    """Gives out whole blocks, shard after shard."""

    def __init__(self) -> None:
        self._ends = [0]

    def place(self, nbytes: int) -> Span:
        blocks = -(-nbytes // BLOCK) * BLOCK
        if self._ends[-1] and self._ends[-1] + blocks > SHARD_BYTES:
            self._ends.append(0)
        at = self._ends[-1]
        self._ends[-1] += blocks
        return Span(len(self._ends) - 1, at, nbytes, 0)

    def shards(self) -> tuple[Shard, ...]:
        return tuple(Shard(f"shard-{i + 1:05d}.ftw", n) for i, n in enumerate(self._ends))


def _by_expert(kind: str, pieces: Sequence[AnyPiece]) -> Iterator[AnyPiece]:
    """A stack of all experts, taken apart, or the pieces as they are."""
    piece = pieces[0]
    if len(piece.shape) < (2 if kind.endswith(".bias") else 3):
        yield from pieces
        return
    assert isinstance(piece, Piece)
    view = piece.view
    for e in range(view.shape[0]):
        own = View(view.shape[1:], view.strides[1:], view.start + e * view.strides[0])
        yield Piece(piece.stored, own)


def _parts(row: Mapping[str, AnyPiece]) -> Iterator[Part]:
    at = 0
    for kind in (k for k in KINDS if k in row):
        piece = row[kind]
        form = FLOAT32 if kind.endswith(".bias") else piece.format  # kernels want these biases
        nbytes = nbytes_of(form, piece.shape)
        yield Part(kind, word_of(form), piece.shape, at, nbytes)
        at = -(-(at + nbytes) // PART_ALIGN) * PART_ALIGN


def _copy(piece: AnyPiece, part: Part) -> Copy:
    return Copy(piece, part.offset, part.nbytes, widen=part.tag != word_of(piece.format))
