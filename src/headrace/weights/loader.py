"""Weights on their way from disk into memory, in the background. No torch, so that reading starts
before it loads.

Every wanted byte is read once, by direct I/O where the file system takes it, straight to where it
stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace import _native
from headrace.errors import CheckpointError
from headrace.weights.arena import Arena
from headrace.weights.checkpoint import StoredTensor
from headrace.weights.packing import Place, Staged, batches
from headrace.weights.pieces import PackedPiece
from headrace.weights.plan import WeightPlan

PAGE = 4096
DEPTH, PIECE_BYTES = 8, 2 << 20  # of reads at once; 1 to 4 MiB and 8 to 16 reads are all as fast
SMALL_BYTES = 1 << 20  # an arena of less saves less than it costs
Progress = Callable[[int, int], None]  # done bytes, total bytes


@dataclass(slots=True)
class _Block:
    """Ranges of one file that share an arena. Pages are whole: direct I/O writes no less."""

    file: Path
    cursor: int = 0
    ranges: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # file offset, bytes, arena offset
    tensors: list[tuple[StoredTensor, int]] = field(default_factory=list)

    @property
    def large(self) -> bool:
        return self.cursor >= SMALL_BYTES

    def add(self, tensor: StoredTensor) -> None:
        if self.ranges:
            start, nbytes, at = self.ranges[-1]
            # Neighbours whose pages touch are one range; what lies between them is less than two
            # pages.
            if tensor.offset // PAGE <= (start + nbytes - 1) // PAGE + 1:
                end = tensor.offset + tensor.nbytes
                self.ranges[-1] = (start, end - start, at)
                self.tensors.append((tensor, at + tensor.offset - start))
                self.cursor = _page_up(at + end - start)
                return
        at = self.cursor + tensor.offset % PAGE
        self.ranges.append((tensor.offset, tensor.nbytes, at))
        self.tensors.append((tensor, at))
        self.cursor = _page_up(at + tensor.nbytes)


def _page_up(n: int) -> int:
    return -(-n // PAGE) * PAGE


class Reading:
    """A background read of all that `plan` wants; starts at once.

    Tensors that will be copied get arenas of their own, small ones a few together, so that each
    is returned when its copies are made.
    """

    def __init__(self, plan: WeightPlan) -> None:
        self.total_bytes = plan.total_bytes
        self._places: dict[str, Place] = {}
        self._packed: dict[int, Place] = {}
        self._plan = plan
        self._error: OSError | ValueError | CheckpointError | None = None
        self._cancelled = False
        self._done_bytes = 0
        self._readers: list[_native.FileReader] = []
        work = [(block.file, self._allocate(block)) for block in _blocks(plan)]
        self._thread = threading.Thread(
            target=self._read, args=(work,), name="weights", daemon=True
        )
        self._thread.start()

    @property
    def done_bytes(self) -> int:
        reading = sum(reader.done_bytes for reader in self._readers)
        return min(self._done_bytes + reading, self.total_bytes)

    def wait(self, progress: Progress | None = None) -> None:
        """Returns when all is in memory. Raises CheckpointError where a file fell short or was
        cancelled.
        """
        while self._thread.is_alive():
            self._thread.join(0.05 if progress else None)
            if progress:
                progress(self.done_bytes, self.total_bytes)
        if isinstance(self._error, CheckpointError):
            raise self._error
        if self._error is not None:
            raise CheckpointError(
                f"reading weights failed: {self._error}",
                expected="files that stay as they are",
                fix="check the disk, or download the file again",
            ) from self._error
        if self._cancelled:
            raise CheckpointError("reading weights was cancelled")
        if progress:
            progress(self.total_bytes, self.total_bytes)

    def cancel(self) -> None:
        """Stops soon; `wait` then raises."""
        self._cancelled = True
        for reader in list(self._readers):
            reader.cancel()
        self._thread.join()

    def take(self, stored: str) -> Place:
        """Hands a tensor's place over; its arena lives on in the views made of it."""
        return self._places.pop(stored)

    def take_packed(self, piece: PackedPiece) -> Place:
        """The same for the tiles of a quantised piece of the plan."""
        return self._packed.pop(id(piece))

    def _allocate(self, block: _Block) -> list[tuple[int, int, int]]:
        arena = Arena(max(block.cursor, PAGE))
        for tensor, offset in block.tensors:
            self._places[tensor.name] = Place(arena, offset)
        return [(start, nbytes, arena.address + at) for start, nbytes, at in block.ranges]

    def _read(self, work: list[tuple[Path, list[tuple[int, int, int]]]]) -> None:
        try:
            for file, ranges in work:
                if self._cancelled:
                    return
                self._readers = [_native.FileReader(str(file), ranges, DEPTH, PIECE_BYTES)]
                self._readers[0].wait()
                self._done_bytes += self._readers[0].done_bytes
                self._readers = []
            self._pack()
        except (OSError, ValueError, CheckpointError) as error:
            self._error = error  # ValueError: shorter than its table says

    def _pack(self) -> None:
        """The next batch is read while this one is packed."""

        def place(piece: PackedPiece, at: Place) -> None:
            self._packed[id(piece)] = at

        coming: Staged | None = None
        for batch in (*batches(self._plan.packed), None):
            now, coming = coming, None
            if batch is not None and not self._cancelled:
                coming = Staged(batch)
            self._readers = [r for s in (now, coming) if s for r in s.readers]
            if now is not None:
                done = now.pack(place)
                self._readers = list(coming.readers) if coming else []
                self._done_bytes += done


def _blocks(plan: WeightPlan) -> list[_Block]:
    blocks: list[_Block] = []
    kept: _Block | None = None
    copied: _Block | None = None
    for tensor in plan.stored:
        if tensor.nbytes == 0:
            continue
        if tensor.name in plan.copied:
            large = tensor.nbytes >= SMALL_BYTES
            if copied is None or copied.file != tensor.file or large or copied.large:
                copied = _Block(tensor.file)
                blocks.append(copied)
            copied.add(tensor)
            continue
        if kept is None or kept.file != tensor.file:
            kept = _Block(tensor.file)
            blocks.append(kept)
        kept.add(tensor)
    return blocks
