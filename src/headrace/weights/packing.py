"""Quantised matrices packed while they are read: parts into bounded staging, tiles to where they
stay. No torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np

from headrace import _native
from headrace.errors import CheckpointError
from headrace.formats.recipe import NUMPY, Array
from headrace.weights.arena import Arena
from headrace.weights.pieces import PackedPiece, Slice

STAGING_BYTES = 64 << 20  # of one batch; two of them are on their way at once
PAGE, ALIGN = 4096, 64
PACKERS = min(4, os.cpu_count() or 1)
Ranges = list[tuple[int, int, int]]  # file offset, bytes, address or place in an arena


@dataclass(frozen=True, slots=True)
class Place:
    """Where bytes lie in memory."""

    arena: Arena
    offset: int


@dataclass(slots=True)
class _Whole:
    """A piece on its way, of which `left` cuts are still to be packed."""

    piece: PackedPiece
    left: int
    place: Place | None = None

    def placed(self) -> Place:
        """Where it stays, in memory of its own."""
        if self.place is None:
            self.place = Place(Arena(self.piece.nbytes), 0)
        return self.place


@dataclass(frozen=True, slots=True)
class _Cut:
    """What is read and packed at once: a piece, or some tiles of one, from `at` on in bytes."""

    piece: PackedPiece
    whole: _Whole
    at: int


def _cuts(pieces: Iterable[PackedPiece]) -> Iterator[_Cut]:
    for piece in pieces:
        parts = piece.cuts(STAGING_BYTES)
        whole, at = _Whole(piece, len(parts)), 0
        for part in parts:
            yield _Cut(part, whole, at)
            at += part.nbytes


@dataclass(slots=True)
class _Batch:
    """Cuts whose parts are read together."""

    cuts: list[_Cut] = field(default_factory=list)
    parts: dict[tuple[Path, int], Slice] = field(default_factory=dict)

    def with_parts(self, piece: PackedPiece) -> int:
        """Bytes that are read with this one, too."""
        more = {(p.file, p.offset): p for p in piece.parts.values()} | self.parts
        return sum(part.nbytes for part in more.values())

    def add(self, cut: _Cut) -> None:
        self.cuts.append(cut)
        self.parts |= {(p.file, p.offset): p for p in cut.piece.parts.values()}


def batches(pieces: Iterable[PackedPiece]) -> Iterator[_Batch]:
    """In the order of the files, so that the disk is read in long runs."""

    def where(cut: _Cut) -> tuple[Path, int]:
        return min((part.file, part.offset) for part in cut.piece.parts.values())

    batch = _Batch()
    for cut in sorted(_cuts(pieces), key=where):
        if batch.cuts and batch.with_parts(cut.piece) > STAGING_BYTES:
            yield batch
            batch = _Batch()
        batch.add(cut)
    if batch.cuts:
        yield batch


class Staged:
    """A batch on its way from disk; reading starts at once."""

    def __init__(self, batch: _Batch) -> None:
        self._batch = batch
        self._at: dict[tuple[Path, int], int] = {}
        ranges: dict[Path, Ranges] = {}
        cursor = 0
        for (file, offset), part in sorted(batch.parts.items()):
            known = ranges.setdefault(file, [])
            # Neighbours whose pages touch are read as one range.
            if known and offset // PAGE <= (known[-1][0] + known[-1][1] - 1) // PAGE + 1:
                start, nbytes, at = known[-1]
                known[-1] = (start, max(nbytes, offset + part.nbytes - start), at)
            else:
                known.append((offset, part.nbytes, cursor + offset % PAGE))
            start, nbytes, at = known[-1]
            self._at[file, offset] = at + offset - start
            cursor = -(-(at + nbytes) // PAGE) * PAGE
        self._arena = Arena(max(cursor, PAGE))
        self.readers = [
            _native.FileReader(
                str(file), [(at, n, self._arena.address + to) for at, n, to in wanted if n]
            )
            for file, wanted in ranges.items()
        ]

    def pack(self, place: Callable[[PackedPiece, Place], None]) -> int:
        """Waits for the bytes and packs them; returns how many were read. A piece is placed with
        its last cut.
        """
        for reader in self.readers:
            reader.wait()
        cuts = self._batch.cuts
        together = [cut.whole for cut in cuts if cut.piece is cut.whole.piece]
        sizes = [-(-whole.piece.nbytes // ALIGN) * ALIGN for whole in together]
        arena = Arena(max(sum(sizes), PAGE))
        for whole, at in zip(together, accumulate(sizes, initial=0), strict=False):
            whole.place = Place(arena, at)
        places = [(cut.whole.placed().arena, cut.whole.placed().offset + cut.at) for cut in cuts]
        with ThreadPoolExecutor(PACKERS, "pack") as pool:  # numpy works without the GIL
            list(pool.map(lambda cut, at: self._pack(cut.piece, *at), cuts, places))
        for cut in cuts:
            cut.whole.left -= 1
            if cut.whole.left == 0:
                place(cut.whole.piece, cut.whole.placed())
        return sum(part.nbytes for part in self._batch.parts.values())

    def _pack(self, piece: PackedPiece, arena: Arena, at: int) -> None:
        tiles = piece.format.tiles(piece.count)
        out = np.frombuffer(memoryview(arena.buffer(at, piece.nbytes)), np.uint8).reshape(tiles, -1)
        at_of = {name: self._at[part.file, part.offset] for name, part in piece.parts.items()}
        pack_from(piece, self._arena, at_of, out)


def pack_from(piece: PackedPiece, arena: Arena, at: Mapping[str, int], out: Array) -> None:
    """Packs one matrix from its parts, which lie `at` these places of `arena`, into `out`, its
    tiles [tiles, bytes]. Raises CheckpointError.
    """
    parts = {name: _array(part, arena, at[name]) for name, part in piece.parts.items()}
    try:
        piece.recipe.pack(parts, piece.rows, piece.format, out)
    except ValueError as error:
        one = next(iter(piece.parts.values()))
        raise CheckpointError(
            f"{one.file}: the matrix at byte {one.offset} cannot be packed: {error}",
            expected=f"parts of {piece.format.name}",
            fix="use another quantisation of this model",
        ) from error


def _array(part: Slice, arena: Arena, at: int) -> Array:
    flat = np.frombuffer(memoryview(arena.buffer(at, part.nbytes)), np.uint8)
    kind = np.dtype(NUMPY[part.tag])
    if kind.itemsize > 1 and at % kind.itemsize:
        flat = flat.copy()
    return flat.view(kind).reshape(part.shape)
