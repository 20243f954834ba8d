"""DiskQueue: the bytes of any spans, urgent ones first, errors that name file and place."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headrace._native import DiskQueue
from headrace.weights.arena import Arena

PAGE = 4096


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b"]
    for file, size in zip(made, (50_001, 9000), strict=True):
        file.write_bytes(os.urandom(size))
    return made


def queue_of(files: list[Path], threads: int = 3, piece: int = PAGE) -> DiskQueue:
    return DiskQueue([str(file) for file in files], threads, piece)


@pytest.mark.parametrize("piece", [PAGE, 3 * PAGE, 1 << 20])
def test_spans_come_whole(files: list[Path], piece: int) -> None:
    spans = [
        (0, 0, 50_001),
        (0, 5, 1),
        (0, 4095, 2),
        (1, 8999, 1),
        (1, 100, 8192),
        (0, 9000, 30_000),
    ]
    arena = Arena(len(spans) * 16 * PAGE)
    queue = queue_of(files, piece=piece)
    tickets = []
    for i, (file, offset, nbytes) in enumerate(spans):
        to = i * 16 * PAGE + offset % PAGE
        ticket = queue.submit([(file, offset, nbytes, arena.address + to)], i % 2 == 0)
        tickets.append((ticket, file, offset, nbytes, to))
    for ticket, file, offset, nbytes, to in reversed(tickets):
        queue.hurry(ticket)
        assert queue.wait(ticket)
        got = bytes(arena.buffer(to, nbytes))
        assert got == files[file].read_bytes()[offset : offset + nbytes]
    assert queue.bytes == sum(nbytes for _, _, nbytes in spans)
    assert queue.busy_ns > 0
    queue.close()


def test_a_short_read_names_the_file(files: list[Path]) -> None:
    arena = Arena(32 * PAGE)
    queue = queue_of(files)
    ticket = queue.submit([(1, 4096, 40_000, arena.address)], True)
    with pytest.raises(OSError, match="ended early") as raised:
        queue.wait(ticket)
    assert raised.value.filename == str(files[1])
    with pytest.raises(ValueError, match="ticket"):  # it is spent
        queue.wait(ticket)
    good = queue.submit([(0, 0, 10, arena.address)], True)
    assert queue.wait(good)


def test_what_is_refused(files: list[Path]) -> None:
    arena = Arena(8 * PAGE)
    queue = queue_of(files)
    for span in [
        (2, 0, 1, arena.address),
        (-1, 0, 1, arena.address),
        (0, 1, 1, arena.address),
        (0, -4096, 1, arena.address),
        (0, 0, 0, arena.address),
        (0, 0, 1, 0),
    ]:
        with pytest.raises(ValueError, match="expected"):
            queue.submit([span], False)
    with pytest.raises(ValueError, match="reader threads"):
        queue_of(files, threads=0)
    with pytest.raises(ValueError, match="pieces"):
        queue_of(files, piece=0)
    with pytest.raises(FileNotFoundError):
        queue_of([files[0].with_name("none")])


def test_dropped_jobs_write_no_more(files: list[Path]) -> None:
    arena = Arena(16 * PAGE)
    queue = queue_of(files, threads=1)
    tickets = [queue.submit([(0, 0, 50_001, arena.address)], False) for _ in range(20)]
    for ticket in reversed(tickets):
        queue.drop(ticket)
    arena.buffer(0, arena.nbytes)[:] = b"\x55" * arena.nbytes
    queue.wait(queue.submit([(1, 0, 9000, arena.address)], True))
    assert bytes(arena.buffer(0, 9000)) == files[1].read_bytes()  # the queue lives
    assert bytes(arena.buffer(3 * PAGE, PAGE)) == b"\x55" * PAGE


def test_urgent_jobs_overtake(files: list[Path]) -> None:
    arena = Arena(16 * PAGE)
    queue = queue_of(files, threads=1)
    slow = [queue.submit([(0, 0, 50_001, arena.address)], False) for _ in range(200)]
    assert queue.wait(queue.submit([(1, 0, 100, arena.address)], True))
    assert not queue.done(slow[-1])
    queue.hurry(slow[-1])
    assert queue.wait(slow[-1])
    for ticket in slow[:-1]:
        queue.drop(ticket)


def test_closing_ends_those_who_wait(files: list[Path]) -> None:
    arena = Arena(16 * PAGE)
    queue = queue_of(files, threads=1)
    tickets = [queue.submit([(0, 0, 50_001, arena.address)], False) for _ in range(500)]
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            queue.wait(tickets[-1])
        except RuntimeError as error:
            failed.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    queue.close()
    queue.close()
    waiter.join(10)
    assert not waiter.is_alive()
    assert len(failed) == 1
    with pytest.raises(RuntimeError, match="closed"):
        queue.wait(queue.submit([(0, 0, 1, arena.address)], True))
