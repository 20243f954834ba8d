"""Device memory made of RAM: the budget is kept, and what shrinks goes back to the system."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.device.cpu import CpuDevice
from headrace.device.memory import DeviceMemory
from headrace.errors import CapacityError

PAGE = mmap.PAGESIZE
MIB = 1 << 20


def resident() -> int:
    """Bytes of this process in RAM, as the kernel counts them."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_a_tensor_is_counted_until_its_last_view_is_gone() -> None:
    memory = DeviceMemory(1000)
    tensor = memory.tensor((10, 5), torch.float32)
    assert (memory.used, memory.free) == (200, 800)
    view = tensor[3:].T
    del tensor
    assert memory.used == 200
    del view
    assert memory.used == 0


@pytest.mark.parametrize(
    ("dtype", "reads"),
    [(torch.float32, "nan"), (torch.bfloat16, "nan"), (torch.int32, "-1"), (torch.int64, "-1")],
)
def test_what_was_never_written_is_no_number(dtype: torch.dtype, reads: str) -> None:
    tensor = DeviceMemory(1000).tensor((3, 7), dtype)
    assert tensor.shape == (3, 7)
    assert {str(v) for v in tensor.flatten().tolist()} == {reads}


def test_nothing_is_given_beyond_the_budget() -> None:
    memory = DeviceMemory(100)
    kept = memory.tensor((60,), torch.uint8)
    with pytest.raises(CapacityError, match="41 bytes were asked of a device with 40 of 100 free"):
        memory.tensor((41,), torch.uint8)
    assert memory.used == 60
    memory.total = 50  # somebody else took it: nothing is taken back
    assert memory.free == 0
    with pytest.raises(CapacityError):
        memory.take(1)
    memory.take(0)
    del kept
    assert memory.free == 50


def test_a_range_shrinks_and_grows_in_place() -> None:
    memory = DeviceMemory(64 * MIB)
    grown = memory.range(1 << 40, poison=True)  # a terabyte of addresses costs nothing
    address, before = grown.tensor.data_ptr(), resident()
    grown.resize(32 * MIB)
    assert memory.used == grown.committed == 32 * MIB
    assert bool((grown.tensor[: 32 * MIB : 4093] == 0xFF).all())
    assert resident() - before > 28 * MIB
    grown.tensor[:100] = 7
    grown.resize(PAGE)
    assert memory.used == PAGE
    assert resident() - before < 4 * MIB
    grown.resize(8 * MIB)
    assert grown.tensor.data_ptr() == address
    assert grown.tensor[:100].tolist() == [7] * 100
    assert bool((grown.tensor[PAGE : 8 * MIB] == 0xFF).all()), "old bytes came back"
    with pytest.raises(CapacityError):
        grown.resize(65 * MIB)
    assert (grown.committed, memory.used) == (8 * MIB, 8 * MIB)
    memory.close()
    assert (grown.committed, memory.used) == (0, 0)
    memory.close()


def test_what_is_touched_is_in_ram_at_once_and_the_rest_when_it_is_written() -> None:
    memory = DeviceMemory(256 * MIB)
    held, other = (memory.range(128 * MIB, poison=False) for _ in range(2))
    before = resident()
    other.resize(12 * MIB)
    assert resident() - before < 2 * MIB
    held.resize(8 * MIB, touched=20 * MIB)
    assert 7 * MIB < resident() - before < 12 * MIB
    assert not held.tensor[: 8 * MIB : 4093].any()
    held.tensor[:100] = 7
    held.resize(100 * MIB, touched=20 * MIB)
    assert 19 * MIB < resident() - before < 24 * MIB
    held.resize(120 * MIB, touched=20 * MIB)
    assert resident() - before < 24 * MIB
    assert held.tensor[:100].tolist() == [7] * 100
    memory.close()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40 * PAGE)), max_size=20))
def test_ranges_against_plain_sums(steps: list[tuple[int, int]]) -> None:
    total = 60 * PAGE
    memory = DeviceMemory(total)
    ranges = [memory.range(40 * PAGE, poison=False) for _ in range(3)]
    committed = [0, 0, 0]
    for which, nbytes in steps:
        rounded = -(-nbytes // PAGE) * PAGE
        others = sum(committed) - committed[which]
        if others + rounded > total:
            with pytest.raises(CapacityError):
                ranges[which].resize(nbytes)
        else:
            ranges[which].resize(nbytes)
            committed[which] = rounded
        assert [r.committed for r in ranges] == committed
        assert memory.used == sum(committed)
    memory.close()
    assert memory.used == 0


def test_addresses_that_the_system_refuses_are_a_capacity_error() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    resource.setrlimit(resource.RLIMIT_AS, (size + 256 * MIB, hard))
    try:
        with pytest.raises(CapacityError, match="ulimit -v"):
            DeviceMemory(MIB).range(1 << 40, poison=True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_closing_a_device_gives_elastic_memory_back() -> None:
    before = resident()
    with CpuDevice(1) as device:
        held = device.elastic(32 * MIB)
        held.resize(32 * MIB)
        held.tensor.fill_(1)
        assert resident() - before > 28 * MIB
    assert resident() - before < 4 * MIB
    assert held.tensor[5] == 0  # still mapped: a late reader does not crash
