"""Parts of stored tensors as dense bytes, in bounded memory, by direct reads. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.errors import CheckpointError
from headrace.formats.format import BFLOAT16, FLOAT16, FLOAT32, Format
from headrace.weights.arena import Arena
from headrace.weights.checkpoint import StoredTensor
from headrace.weights.names import View
from headrace.weights.packing import Place, Staged, batches
from headrace.weights.pieces import PackedPiece, Piece

BLOCK = 4096
WINDOW_BYTES = 64 << 20  # what one look at a file may hold
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
Words = NDArray[np.unsignedinteger]


class Gatherer:
    """Reads strided parts of files through one window of fixed size; for one thread."""

    def __init__(self, window_bytes: int = WINDOW_BYTES) -> None:
        self._window_bytes = window_bytes
        self._arena = Arena(window_bytes + 2 * BLOCK)
        self._held: tuple[Path, int, int] | None = None  # file, from and to which block

    def words(self, piece: Piece, begin: int, count: int) -> Words:
        """Rows of a piece, along its first axis, dense: as unsigned words of an element's size, as
        bytes where it is packed.
        """
        view, width = piece.view, piece.format.element_bytes
        if piece.format.packed:
            view, width = _bytes_of(view, piece.format), 1
        view = view.slice(0, begin, count, 1)
        out = np.empty(view.shape, _WORDS[width])
        self._fill(piece.stored, view, out)
        return out

    def read(self, stored: StoredTensor, start: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a file from `start`, until the next read. Raises CheckpointError."""
        # Gate and up rows that alternate in the file are two views of the same blocks.
        blocks = (stored.file, start // BLOCK, -(-(start + nbytes) // BLOCK))
        if blocks != self._held:
            self._held = None
            self._load(stored, blocks[1] * BLOCK, start + nbytes)
            self._held = blocks
        return np.frombuffer(
            memoryview(self._arena.buffer(start % BLOCK, nbytes)).cast("B"), np.uint8
        )

    def _load(self, stored: StoredTensor, start: int, end: int) -> None:
        end = min(-(-end // BLOCK) * BLOCK, max(end, stored.file.stat().st_size))
        try:
            ranges = [(start, end - start, self._arena.address)]
            _native.FileReader(str(stored.file), ranges, threads=2).wait()
        except (OSError, ValueError) as error:  # ValueError: shorter than its table says
            raise _unread(f"{stored.name!r}: {error}") from error

    def _fill(self, stored: StoredTensor, view: View, out: Words) -> None:
        if out.size == 0:
            return
        size = out.itemsize
        steps = [(n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)]
        extent = (sum(steps) + 1) * size
        if extent > self._window_bytes:
            axis = steps.index(max(steps))
            half = view.shape[axis] // 2
            first = (slice(None),) * axis + (slice(0, half),)
            rest = (slice(None),) * axis + (slice(half, None),)
            self._fill(stored, view.slice(axis, 0, half, 1), out[first])
            self._fill(stored, view.slice(axis, half, view.shape[axis] - half, 1), out[rest])
            return
        data = self.read(stored, stored.offset + view.start * size, extent).view(out.dtype)
        strides = [s * size for s in view.strides]
        np.copyto(out, np.lib.stride_tricks.as_strided(data, view.shape, strides))


def _unread(what: str) -> CheckpointError:
    return CheckpointError(
        f"reading {what} failed",
        expected="files that stay as they are",
        fix="check the disk, or download the file again",
    )


def _bytes_of(view: View, form: Format) -> View:
    """Whole rows of a packed tensor, as the bytes that they are."""
    columns = view.shape[-1]
    nbytes = form.tile_nbytes(columns)
    strides = (*(s // columns * nbytes for s in view.strides[:-1]), 1)
    return View((*view.shape[:-1], nbytes), strides, view.start // columns * nbytes)


def tiles_of(pieces: Sequence[PackedPiece]) -> dict[int, Words]:
    """Quantised matrices as tiles, by the `id` of their piece; all of them are held at once."""
    made: dict[int, Words] = {}

    def keep(piece: PackedPiece, place: Place) -> None:
        held = memoryview(place.arena.buffer(place.offset, piece.nbytes))
        made[id(piece)] = np.frombuffer(held.cast("B"), np.uint8)

    for batch in batches(pieces):
        try:
            Staged(batch).pack(keep)
        except (OSError, ValueError) as error:
            raise _unread(str(error)) from error
    return made


def widened(words: Words, format_: Format) -> Words:
    """The same values in float32, as words."""
    if format_ == BFLOAT16:
        return words.astype(np.uint32) << np.uint32(16)
    if format_ == FLOAT16:
        return words.view(np.float16).astype(np.float32).view(np.uint32)
    assert format_ == FLOAT32, format_
    return words
