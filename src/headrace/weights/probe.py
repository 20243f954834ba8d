"""How fast the disk gives expert rows, and with how many reads of what size at once. No torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace._native import DiskQueue
from headrace.errors import CheckpointError
from headrace.weights.arena import Arena
from headrace.weights.rows import RowSource

MIB = 1 << 20
WAYS = ((8, MIB), (4, MIB), (8, 4 * MIB), (16, MIB // 2))  # threads and bytes of a piece
PROBE_BYTES = 48 * MIB  # of each way: 30 ms on a fast disk


@dataclass(frozen=True, slots=True)
class Way:
    """How the disk is read, and how fast that was; bytes/s."""

    threads: int
    piece_bytes: int
    rate: float


def probe(source: RowSource, *, nbytes: int = PROBE_BYTES) -> Way:
    """The fastest way to read rows of these files. Raises CheckpointError where they cannot be."""
    spans = [span for rows in source.layers if rows for row in rows.spans for span in row]
    total = sum(span.nbytes for span in spans)
    if total < 2 * nbytes * len(WAYS):  # too little to tell ways apart
        return Way(*WAYS[0], 0.0)
    files = [str(file) for file in source.files]
    biggest = max(span.nbytes for span in spans)
    arena = Arena(nbytes + biggest + 4096)
    at, best = 0, Way(*WAYS[0], 0.0)
    for threads, piece in WAYS:
        ranges, done = [], 0
        while done < nbytes:
            span = spans[at]
            to = arena.address + -(-done // 4096) * 4096 + span.offset % 4096
            room = arena.address + arena.nbytes - to - 4096
            size = min(span.nbytes, nbytes - done, room)
            if size <= 0:
                break
            ranges.append((span.file, span.offset, size, to))
            done, at = done + size + 8192, at + 1
        rate = _timed(files, threads, piece, ranges)
        if rate > 1.03 * best.rate:  # of equals the first
            best = Way(threads, piece, rate)
    return best


def _timed(
    files: Sequence[str], threads: int, piece: int, ranges: Sequence[tuple[int, int, int, int]]
) -> float:
    try:
        queue = DiskQueue(files, threads, piece)
        began = time.perf_counter()
        queue.wait(queue.submit(ranges, True))
        return queue.bytes / (time.perf_counter() - began)
    except OSError as error:
        raise unreadable("the experts", error) from error


def unreadable(what: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{what} cannot be read: {error}",
        expected="files that stay as they are while they are served",
        fix="check the disk, or download the file again",
    )
