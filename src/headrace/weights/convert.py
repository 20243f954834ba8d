"""Any checkpoint -> an FTW folder: in bounded memory, resumable after a kill, and complete only
once its index appears. No torch.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from headrace import _native
from headrace.errors import CapacityError, CheckpointError, ConfigError, HeadraceError
from headrace.weights.checkpoint import Checkpoint
from headrace.weights.ftw import JOURNAL
from headrace.weights.ftw_index import INDEX, Index, SideFile, Span, dump, parse
from headrace.weights.ftw_journal import Journal
from headrace.weights.ftw_layout import Copy, Entry, Layout, lay_out
from headrace.weights.ftw_target import (
    check_target,
    reserve,
    source_of,
    times_of,
    torn_shards,
    write_side_files,
)
from headrace.weights.gather import Gatherer, Words, tiles_of, widened
from headrace.weights.pieces import PackedPiece
from headrace.weights.plan import WeightPlan

WORKERS = 3
CHUNK_BYTES = 32 << 20  # read, summed up and written at once
FLUSH_BYTES = 256 << 20  # so much at most is done again after a kill
Progress = Callable[[int, int], None]  # done bytes, total bytes


def convert(
    checkpoint: Checkpoint,
    plan: WeightPlan,
    target: Path,
    progress: Progress | None = None,
    side_files: Mapping[str, bytes] = MappingProxyType({}),
) -> Index:
    """Writes the folder `target`, or goes on with it where an earlier call was stopped.

    `side_files`: by name, beside those that lie beside the source.

    Raises ConfigError for a target that makes no sense, CapacityError when the disk has no room,
    CheckpointError for sources that cannot be read.
    """
    check_target(checkpoint, target)
    layout, source = lay_out(plan), source_of(checkpoint)
    if (target / INDEX).is_file():
        return _finished(target, source)
    target.mkdir(exist_ok=True)
    mark = [
        source,
        times_of(checkpoint),
        [s._asdict() for s in layout.shards],
        _layout_mark(layout),
    ]
    with Journal(target, mark) as journal:
        try:
            torn = torn_shards(target, layout.shards)
            journal.forget(n for n, e in enumerate(layout.entries) if e.span.shard in torn)
            reserve(target, layout.shards)
            _Copying(layout, target, journal, progress).run()
            index = _index(
                layout, journal.sums, source, write_side_files(checkpoint, target, side_files)
            )
            _publish(target, index)
        except CapacityError:
            if not journal.sums:  # nothing is lost, and the folder is free for something else
                journal.remove()
            raise
        except OSError as error:
            raise _failed(target, error) from error
        journal.remove()
    return index


class _Copying:
    """Threads that take entry after entry; what is safe on the disk goes into the journal."""

    def __init__(
        self, layout: Layout, target: Path, journal: Journal, progress: Progress | None
    ) -> None:
        self._layout, self._journal, self._progress = layout, journal, progress
        self._files = [target / shard.file for shard in layout.shards]
        self._fds: list[int] = []
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._left = iter(n for n in range(len(layout.entries)) if n not in journal.sums)
        self._total = sum(e.span.nbytes for e in layout.entries)
        self._done = sum(layout.entries[n].span.nbytes for n in journal.sums)
        self._pending: list[tuple[int, int]] = []
        self._stop = False

    def run(self) -> None:
        """Returns when every entry is on the disk. What is finished stays so when it raises."""
        try:
            self._fds = [os.open(f, os.O_RDWR | os.O_CLOEXEC) for f in self._files]
            with ThreadPoolExecutor(WORKERS, "convert") as pool:
                workers = {pool.submit(self._work) for _ in range(WORKERS)}
                try:
                    self._watch(workers)
                finally:
                    self._stop = True
            self._flush()
        finally:
            for fd in self._fds:
                os.close(fd)

    def _watch(self, workers: set[Future[None]]) -> None:
        running = workers
        while running:
            ended, running = wait(running, timeout=0.1, return_when=FIRST_EXCEPTION)
            for worker in ended:
                worker.result()
            if self._progress:
                self._progress(self._done, self._total)

    def _work(self) -> None:
        gatherer = Gatherer()
        while not self._stop:
            with self._lock:
                number = next(self._left, None)
            if number is None:
                return
            entry = self._layout.entries[number]
            crc = self._write(entry, gatherer)
            with self._lock:
                self._done += entry.span.nbytes
                self._pending.append((number, crc))
                waiting = sum(self._layout.entries[n].span.nbytes for n, _ in self._pending)
            if waiting >= FLUSH_BYTES:
                self._flush()

    def _write(self, entry: Entry, gatherer: Gatherer) -> int:
        """The checksum of all bytes of the entry; the gaps between its parts are zeros."""
        fd, crc, at = self._fds[entry.span.shard], 0, 0
        packed = [c.piece for c in entry.copies if isinstance(c.piece, PackedPiece)]
        tiles = tiles_of([piece for piece in packed if len(piece.cuts(CHUNK_BYTES)) == 1])
        for copy in entry.copies:
            gap = np.zeros(copy.offset - at, np.uint8)
            crc = _native.crc32c(gap.ctypes.data, gap.nbytes, crc)
            at = copy.offset
            for words in _chunks(copy, tiles, gatherer):
                _write_all(fd, words, entry.span.offset + at)
                crc = _native.crc32c(words.ctypes.data, words.nbytes, crc)
                at += words.nbytes
        assert at == entry.span.nbytes
        return crc

    def _flush(self) -> None:
        with self._flushing:
            with self._lock:
                batch, self._pending = self._pending, []
            for shard in {self._layout.entries[n].span.shard for n, _ in batch}:
                os.fdatasync(self._fds[shard])
                os.posix_fadvise(self._fds[shard], 0, 0, os.POSIX_FADV_DONTNEED)
            self._journal.add(batch)


def _chunks(copy: Copy, tiles: Mapping[int, Words], gatherer: Gatherer) -> Iterator[Words]:
    """The bytes of a piece, dense, CHUNK_BYTES or one row of its first axis at a time; of a packed
    one as many tiles, or all of `tiles`.
    """
    piece = copy.piece
    if isinstance(piece, PackedPiece):
        if id(piece) in tiles:
            yield tiles[id(piece)]
            return
        for cut in piece.cuts(CHUNK_BYTES):
            yield from tiles_of([cut]).values()
        return
    rows = piece.shape[0]
    step = max(1, CHUNK_BYTES * rows // max(copy.nbytes, 1))
    for begin in range(0, rows, step):
        words = gatherer.words(piece, begin, min(step, rows - begin))
        yield widened(words, piece.format) if copy.widen else words


def _write_all(fd: int, words: Words, offset: int) -> None:
    data = words.reshape(-1).view(np.uint8).data
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def _finished(target: Path, source: dict[str, Any]) -> Index:
    try:
        index = parse(target)
    except CheckpointError as error:  # damaged, or of another version
        raise ConfigError(
            error.found, expected=error.expected, fix="delete it, or choose another destination"
        ) from error
    if index.source != source:
        raise ConfigError(
            f"{target} holds another model, converted before",
            fix="delete it, or choose another destination",
        )
    (target / JOURNAL).unlink(missing_ok=True)
    return index


def _layout_mark(layout: Layout) -> list[Any]:
    parts = {
        str(layer): [list(p) for p in e.forms[0]]
        if len(e.forms) == 1
        else [[[list(p) for p in parts] for parts in e.forms], list(e.form_of)]
        for layer, e in layout.experts.items()
    }
    words = {name: dense.tag for name, dense in layout.tensors.items()}
    entries = [[e.name, *e.span] for e in layout.entries]
    return [[list(s) for s in layout.shards], parts, entries, words]


def _index(
    layout: Layout,
    sums: Mapping[int, int],
    source: dict[str, Any],
    files: Mapping[str, SideFile],
) -> Index:
    crc = {entry.span[:2]: sums[n] for n, entry in enumerate(layout.entries) if entry.span.nbytes}

    def summed(span: Span) -> Span:
        return span._replace(crc=crc[span[:2]] if span.nbytes else 0)

    return Index(
        writer=f"headrace {version('headrace')}",
        source=source,
        files=files,
        shards=layout.shards,
        tensors={n: d._replace(span=summed(d.span)) for n, d in layout.tensors.items()},
        experts={
            layer: replace(e, rows=tuple(summed(row) for row in e.rows))
            for layer, e in layout.experts.items()
        },
    )


def _publish(target: Path, index: Index) -> None:
    """The index appears whole, after all that it names, or not at all."""
    part = target / f"{INDEX}.part"
    part.write_text(dump(index), encoding="utf-8")
    for path in [*(target / name for name in index.files), part, target]:
        _sync(path)
    part.replace(target / INDEX)
    _sync(target)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _failed(target: Path, error: OSError) -> HeadraceError:
    again = "give the same command again, which goes on where it stopped"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CapacityError(
            f"the disk of {target} is full", expected="room for the converted model",
            fix=f"free some disk space and {again}",
        )  # fmt: skip
    return CheckpointError(f"writing {target} failed: {error}", fix=f"mend that and {again}")
