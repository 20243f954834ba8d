"""What a canonical tensor is made of: a stored tensor, a strided part of one, or the stored parts
of a quantised matrix. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TypeAlias

from headrace.formats.format import Format
from headrace.formats.schemes import Recipe
from headrace.weights.checkpoint import StoredTensor
from headrace.weights.names import View


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored tensor, or a strided part of it."""

    stored: StoredTensor
    view: View

    @property
    def format(self) -> Format:
        return self.stored.format

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def in_place(self) -> bool:
        """False where it must be copied once: rows that are not contiguous, or elements off their
        alignment.
        """
        if self.format.packed:
            return True  # tiles are bytes, and the plan takes whole rows alone
        aligned = self.stored.offset % self.format.element_bytes == 0
        return aligned and self.view.rows_in_place

    @property
    def nbytes(self) -> int:
        if len(self.shape) < 2:
            return self.format.tile_nbytes(self.shape[0]) if self.shape else 4
        *lead, rows, columns = self.shape
        return prod(lead) * self.format.nbytes(rows, columns)


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes of a file that are one part of one matrix; `shape` is that of these bytes."""

    file: Path
    offset: int
    nbytes: int
    tag: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedPiece:
    """Rows `first`, `first + step`, .. of a matrix that is stored in parts, to become tiles.

    Pieces with equal `parts` are packed from the same bytes.
    """

    recipe: Recipe
    parts: Mapping[str, Slice]
    first: int
    count: int
    step: int
    columns: int

    @property
    def format(self) -> Format:
        return self.recipe.format

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, self.columns

    @property
    def rows(self) -> slice:
        """As numpy takes them."""
        return slice(self.first, self.first + self.count * self.step, self.step)

    @property
    def nbytes(self) -> int:
        return self.format.nbytes(self.count, self.columns)

    def cuts(self, nbytes: int) -> tuple[PackedPiece, ...]:
        """Itself; or, where it is packed row by row from more than `nbytes`, pieces of whole tiles
        that read about so much, one after another.
        """
        if not self.recipe.by_rows or sum(p.nbytes for p in self.parts.values()) <= nbytes:
            return (self,)
        tall = self.format.tile_rows
        rows = nbytes // (self.step * self.format.row_nbytes(self.columns))
        rows = max(rows // tall, 1) * tall
        starts = range(0, self.count, rows)
        return tuple(self._cut(first, min(rows, self.count - first)) for first in starts)

    def _cut(self, first: int, count: int) -> PackedPiece:
        ((name, part),) = self.parts.items()
        row, begin = part.nbytes // part.shape[0], self.first + first * self.step
        rows = (count - 1) * self.step + 1
        own = Slice(
            part.file, part.offset + begin * row, rows * row, part.tag, (rows, *part.shape[1:])
        )
        return replace(self, parts={name: own}, first=0, count=count)


AnyPiece: TypeAlias = Piece | PackedPiece
