"""Direct reads: every byte asked for arrives in its place, or the reader says what is missing."""

import ctypes
import itertools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import _native

BLOCK = 4096
FILE_BYTES = 3 * (1 << 20) + 1234
# Where files lie decides whether direct I/O is taken; both ways must give the same bytes.
FOLDERS = [None, "/dev/shm"] if Path("/dev/shm").is_dir() else [None]


class RandomFile(NamedTuple):
    """A file of noise; `repr` stays short for failing examples."""

    path: Path
    content: bytes

    def __repr__(self) -> str:
        return f"RandomFile({self.path})"


class Memory:
    """Huge-page memory filled with a marker, so that untouched bytes show."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = _native.alloc(nbytes)
        ctypes.memset(self.address, 0xA5, nbytes)

    def bytes_at(self, start: int, count: int) -> bytes:
        return ctypes.string_at(self.address + start, count)

    def free(self) -> None:
        _native.free(self.address, self.nbytes)


@pytest.fixture(scope="module", params=FOLDERS)
def random_file(request: pytest.FixtureRequest) -> Iterator[RandomFile]:
    content = random.Random(7).randbytes(FILE_BYTES)
    with tempfile.TemporaryDirectory(dir=request.param) as folder:
        path = Path(folder) / "bank.bin"
        path.write_bytes(content)
        yield RandomFile(path, content)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(8 << 20)
    yield made
    made.free()


def test_alloc_is_zeroed_and_aligned() -> None:
    for nbytes in (1, BLOCK, (2 << 20) - 1, (4 << 20) + 5):
        address = _native.alloc(nbytes)
        assert address % (2 << 20) == 0
        assert not any(ctypes.string_at(address, nbytes))
        _native.free(address, nbytes)


def test_only_whole_huge_pages_are_discarded(memory: Memory) -> None:
    page = 2 << 20
    _native.discard(memory.address + 100, 3 * page)
    assert memory.bytes_at(0, page) == b"\xa5" * page
    assert not any(memory.bytes_at(page, 2 * page))
    assert memory.bytes_at(3 * page, page) == b"\xa5" * page
    _native.discard(memory.address + 3 * page + 1, page - 1)
    assert memory.bytes_at(3 * page, page) == b"\xa5" * page
    with pytest.raises(ValueError, match="found -1 bytes to discard"):
        _native.discard(memory.address, -1)


def test_alloc_refuses_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="found a request for 0 bytes; expected at least 1"):
        _native.alloc(0)
    with pytest.raises(MemoryError, match="refused"):
        _native.alloc(1 << 60)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_ranges_arrive(random_file: RandomFile, memory: Memory, data: st.DataObject) -> None:
    path, content = random_file
    ranges, placed, at = [], [], 0
    for _ in range(data.draw(st.integers(0, 6))):
        offset = data.draw(st.integers(0, FILE_BYTES))
        count = data.draw(st.integers(0, min(FILE_BYTES - offset, 1 << 20)))
        start = at + offset % BLOCK
        ranges.append((offset, count, memory.address + start))
        placed.append((start, offset, count))
        at = -(-(start + count + 1) // BLOCK) * BLOCK
    piece = data.draw(st.sampled_from([1, BLOCK, 3 * BLOCK, 1 << 20]))
    threads = data.draw(st.integers(1, 5))
    reader = _native.FileReader(str(path), ranges, threads=threads, piece_bytes=piece)
    assert reader.wait(60.0)
    assert reader.done_bytes == sum(count for _, count, _ in ranges)
    for start, offset, count in placed:
        assert memory.bytes_at(start, count) == content[offset : offset + count]


def test_only_the_touched_blocks_are_written(random_file: RandomFile, memory: Memory) -> None:
    path, content = random_file
    start = 5 * BLOCK + 77
    reader = _native.FileReader(str(path), [(2 * BLOCK + 77, 10_000, memory.address + start)])
    assert reader.wait()
    assert memory.bytes_at(start, 10_000) == content[2 * BLOCK + 77 :][:10_000]
    assert memory.bytes_at(0, 5 * BLOCK) == b"\xa5" * (5 * BLOCK)
    assert memory.bytes_at(8 * BLOCK, BLOCK) == b"\xa5" * BLOCK


def test_the_whole_file_with_its_partial_last_block(
    random_file: RandomFile, memory: Memory
) -> None:
    path, content = random_file
    reader = _native.FileReader(str(path), [(0, FILE_BYTES, memory.address)])
    assert reader.wait(60.0)
    assert memory.bytes_at(0, FILE_BYTES) == content


def test_neighbouring_ranges_share_a_block(random_file: RandomFile, memory: Memory) -> None:
    path, content = random_file
    cuts = [0, 100, 5000, 70_001, 70_002, 200_000]
    ranges = [(a, b - a, memory.address + a) for a, b in itertools.pairwise(cuts)]
    assert _native.FileReader(str(path), ranges, threads=5).wait(60.0)
    assert memory.bytes_at(0, 200_000) == content[:200_000]


def test_ranges_of_other_places_in_one_block_are_refused(
    random_file: RandomFile, memory: Memory
) -> None:
    path, _ = random_file
    ranges = [(0, 100, memory.address), (BLOCK + 100, 10, memory.address + 100)]
    with pytest.raises(ValueError, match="expected each to own its blocks"):
        _native.FileReader(str(path), ranges)


@pytest.mark.parametrize(
    ("offset", "count", "shift", "message"),
    [
        (-BLOCK, 10, 0, "expected an offset and a size of at least 0"),
        (0, -1, 0, "expected an offset and a size of at least 0"),
        (0, FILE_BYTES + 1, 0, f"which has {FILE_BYTES} bytes; expected a range inside the file"),
        (1 << 62, 1 << 62, 0, "expected a range inside the file"),
        (10, 100, 11, "agree modulo 4096, got 10 and 11"),
    ],
)
def test_bad_ranges_are_refused(
    random_file: RandomFile,
    memory: Memory,
    offset: int,
    count: int,
    shift: int,
    message: str,
) -> None:
    path, _ = random_file
    with pytest.raises(ValueError, match=message):
        _native.FileReader(str(path), [(offset, count, memory.address + shift)])


def test_bad_arguments_are_refused(random_file: RandomFile) -> None:
    path, _ = random_file
    with pytest.raises(ValueError, match="expected 1 to 256"):
        _native.FileReader(str(path), [], threads=0)
    with pytest.raises(ValueError, match="expected 1 byte to 1 GiB"):
        _native.FileReader(str(path), [], piece_bytes=0)
    with pytest.raises(ValueError, match="expected a destination that is not null"):
        _native.FileReader(str(path), [(0, 1, 0)])


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        _native.FileReader(str(tmp_path / "absent"), [])
    assert missing.value.filename == str(tmp_path / "absent")
    with pytest.raises(OSError, match="expected a regular file"):
        _native.FileReader(str(tmp_path), [])


def test_a_short_read_says_what_came() -> None:
    # A file of sysfs claims one page and holds a few bytes, like a file that was cut short.
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not path.is_file() or path.stat().st_size != BLOCK:
        pytest.skip("no sysfs file that is shorter than it claims")
    held = len(path.read_bytes())
    memory = Memory(BLOCK)
    reader = _native.FileReader(str(path), [(0, BLOCK, memory.address)])
    with pytest.raises(OSError, match=f"read {held} bytes at offset 0; expected 4096") as short:
        reader.wait()
    assert short.value.filename == str(path)
    assert reader.done_bytes == 0
    memory.free()


def test_cancel_stops_between_pieces(random_file: RandomFile, memory: Memory) -> None:
    path, _ = random_file
    reader = _native.FileReader(
        str(path), [(0, FILE_BYTES, memory.address)] * 200, threads=1, piece_bytes=BLOCK
    )
    reader.cancel()
    assert not reader.wait()
    assert reader.done_bytes < 200 * FILE_BYTES
    del reader


def test_dropping_a_reader_ends_its_threads(random_file: RandomFile, memory: Memory) -> None:
    path, _ = random_file
    before = len(list(Path("/proc/self/task").iterdir()))
    reader = _native.FileReader(
        str(path), [(0, FILE_BYTES, memory.address)] * 200, threads=3, piece_bytes=BLOCK
    )
    del reader
    assert len(list(Path("/proc/self/task").iterdir())) == before
