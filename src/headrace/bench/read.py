"""How fast weights come into memory, against a plain parallel direct read of the same bytes."""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace.bench.checkpoint import Progress, Shape, ensure
from headrace.bench.report import fingerprint, spread
from headrace.models.source import ModelSource, open_model
from headrace.weights.convert import convert

BLOCK = 4096
PIECE_BYTES = 1 << 20
DEPTH = 8
Ranges = list[tuple[Path, int, int]]  # file, offset, bytes: whole blocks


def run(
    *, model: Path | None, shape: Shape, repeats: int, home: Path, progress: Progress
) -> dict[str, Any]:
    """Bytes/s of reading a model's weights to where they stay, memory included, and of reading the
    same blocks over and over into one small buffer: two sides that take turns.

    Without a model: a random checkpoint as safetensors, and the same as FTW.
    """
    folders = [model] if model else list(_made(home / "bench", shape, progress))
    kinds = {}
    for folder in folders:
        source = open_model(folder)
        kinds[source.checkpoint.dialect] = _measure(source, repeats, progress)
    return {
        "bench": "read",
        "model": str(model.name) if model else shape.name(),
        **kinds,
        "piece_bytes": PIECE_BYTES,
        "depth": DEPTH,
        "repeats": repeats,
        "machine": fingerprint(threads=os.cpu_count() or 1, isa=""),
    }


def _made(home: Path, shape: Shape, progress: Progress) -> Iterator[Path]:
    published = ensure(home / shape.name(), shape, progress)
    yield published
    target = home / f"{shape.name()}.ftw"
    source = open_model(published)
    convert(
        source.checkpoint,
        source.plan,
        target,
        lambda done, total: progress(done, total, "converting"),
    )
    yield target


def _measure(source: ModelSource, repeats: int, progress: Progress) -> dict[str, Any]:
    ranges, nbytes = _blocks_of(source), source.plan.total_bytes
    plain, loaded = [], []
    for i in range(repeats):
        progress(2 * i, 2 * repeats, "reading plainly")
        start = time.perf_counter()
        _read_plainly(ranges)
        plain.append(sum(n for _, _, n in ranges) / (time.perf_counter() - start))
        progress(2 * i + 1, 2 * repeats, "loading")
        start = time.perf_counter()
        reading = source.read()
        reading.wait()
        loaded.append(nbytes / (time.perf_counter() - start))
        del reading
    shares = [mine / theirs for mine, theirs in zip(loaded, plain, strict=True)]
    return {
        "bytes": nbytes,
        "bytes_per_s": spread(loaded),
        "plain_bytes_per_s": spread(plain),
        "share_of_plain": statistics.median(loaded) / statistics.median(plain),
        "shares": spread(shares),
    }


def _blocks_of(source: ModelSource) -> Ranges:
    """The blocks that the weights touch, each once, in pieces."""
    pieces: Ranges = []
    file, end = Path(), 0
    touched = [(t.file, t.offset, t.nbytes) for t in source.plan.stored]
    touched += [(t.file, t.offset, t.nbytes) for t in source.plan.parts]
    for of, offset, nbytes in sorted(touched):
        if of != file:
            file, end = of, 0
        begin = max(offset // BLOCK * BLOCK, end)
        end = max(end, -(-(offset + nbytes) // BLOCK) * BLOCK)
        for at in range(begin, end, PIECE_BYTES):
            pieces.append((file, at, min(PIECE_BYTES, end - at)))
    return pieces


def _read_plainly(ranges: Ranges) -> None:
    """Each thread has one buffer, and takes every DEPTH-th piece."""
    files = {file: _open(file) for file in {file for file, _, _ in ranges}}

    def work(first: int) -> None:
        with mmap.mmap(-1, PIECE_BYTES) as buffer, memoryview(buffer) as whole:
            for file, offset, nbytes in ranges[first::DEPTH]:
                with whole[:nbytes] as part:
                    os.preadv(files[file], [part], offset)

    try:
        with ThreadPoolExecutor(DEPTH) as pool:
            list(pool.map(work, range(DEPTH)))
    finally:
        for fd in files.values():
            os.close(fd)


def _open(file: Path) -> int:
    try:
        return os.open(file, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # a file system without direct I/O
        return os.open(file, os.O_RDONLY)
