"""Every entry of an FTW folder against its checksum, in parallel. No torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from headrace import _native
from headrace.errors import CheckpointError
from headrace.files import read_bytes
from headrace.weights.arena import Arena
from headrace.weights.ftw import check_size, finished
from headrace.weights.ftw_index import Index, Span
from headrace.weights.ftw_target import crc32c

WORKERS = 3
CHUNK_BYTES = 32 << 20
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry, or a whole file, that is bad, and how."""

    entry: str
    file: Path
    offset: int
    found: str

    def __str__(self) -> str:
        return f"{self.entry} ({self.file.name}, offset {self.offset}): {self.found}"


def verify_ftw(folder: Path, progress: Progress | None = None) -> list[Fault]:
    """All that is bad, in the order of the index. Raises CheckpointError where the index is."""
    index = finished(folder)
    return [*_bad_files(folder, index), *_Check(folder, index).run(progress)]


def _bad_files(folder: Path, index: Index) -> Iterator[Fault]:
    for name, said in index.files.items():
        file = folder / name
        try:
            check_size(file, said.nbytes)
            if crc32c(read_bytes(file, said.nbytes)) != said.crc:
                yield Fault("file", file, 0, "its checksum differs")
        except (CheckpointError, OSError) as error:
            yield Fault("file", file, 0, str(error))
    for shard in index.shards:
        try:
            check_size(folder / shard.file, shard.nbytes)
        except CheckpointError as error:
            yield Fault("shard", folder / shard.file, 0, error.found)


class _Check:
    """Threads that take entry after entry, each with memory of its own."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self._index = folder, index
        self._entries = list(index.entries())
        self._left = iter(range(len(self._entries)))
        self._faults: dict[int, Fault] = {}
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._stop = False

    def run(self, progress: Progress | None) -> list[Fault]:
        total = sum(span.nbytes for _, span in self._entries)
        with ThreadPoolExecutor(WORKERS, "verify") as pool:
            running = {pool.submit(self._work) for _ in range(WORKERS)}
            try:
                while running:
                    ended, running = wait(running, timeout=0.1)
                    for worker in ended:
                        worker.result()
                    if progress:
                        progress(self._done_bytes, total)
            finally:
                self._stop = True
        return [self._faults[n] for n in sorted(self._faults)]

    def _work(self) -> None:
        arena = Arena(CHUNK_BYTES)
        while not self._stop:
            with self._lock:
                number = next(self._left, None)
            if number is None:
                return
            name, span = self._entries[number]
            file = self._folder / self._index.shards[span.shard].file
            found = _fault(file, span, arena)
            with self._lock:
                self._done_bytes += span.nbytes
                if found:
                    self._faults[number] = Fault(name, file, span.offset, found)


def _fault(file: Path, span: Span, arena: Arena) -> str:
    """What is wrong with these bytes; nothing if they are as the index says."""
    crc = 0
    for begin in range(0, span.nbytes, CHUNK_BYTES):
        nbytes = min(CHUNK_BYTES, span.nbytes - begin)
        ranges = [(span.offset + begin, nbytes, arena.address)]
        try:
            _native.FileReader(str(file), ranges, threads=2).wait()
        except (OSError, ValueError) as error:  # ValueError: the file is shorter
            return f"cannot be read: {error}"
        crc = _native.crc32c(arena.address, nbytes, crc)
    return "" if crc == span.crc else f"checksum {crc:08x}, expected {span.crc:08x}"
