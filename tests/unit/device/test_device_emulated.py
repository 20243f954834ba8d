"""The emulated device: its link keeps to a rate, its captures to the rules of a real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hetero import Shape, bank_of, device_of, routed, x_of

from headrace.device.emulated import EmulatedDevice, Emulation
from headrace.errors import CapacityError, DeviceError
from headrace.ops.choose import ops_for
from headrace.ops.experts.native import expert_layer

MIB = 1 << 20


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with device_of() as made:
        yield made


def copy_rows(device: EmulatedDevice, experts: list[int], slots: list[int], count: int) -> object:
    """Rows of a small layer into fresh slots; (bank's rows, slots' rows)."""
    bank = bank_of(Shape(6, 10))
    layout = bank.layouts[0]
    memory = device.empty((8 * bank.slot_bytes,), torch.uint8)
    device.copies.copy_rows(
        layout.spans,
        torch.tensor(experts, dtype=torch.int32),
        torch.tensor(slots, dtype=torch.int32),
        torch.tensor([count], dtype=torch.int32),
        memory,
        bank.slot_bytes,
        poison=True,
    )
    device.copies.wait()
    return bank.rows(0), layout.rows(memory, 8, bank.slot_bytes)


@pytest.mark.parametrize("virtual", [False, True])
def test_rows_are_copied_as_far_as_the_count_says(virtual: bool) -> None:
    with device_of(virtual=virtual) as device:
        bank, slots = copy_rows(device, [4, 0, 5], [2, 7, 1], 2)  # type: ignore[misc]
        for e, slot in ((4, 2), (0, 7)):
            for there, here in ((bank.gate, slots.gate), (bank.up, slots.up)):
                assert torch.equal(here[slot], there[e])
            assert torch.equal(slots.down[slot], bank.down[e])
        assert bool(slots.gate[1].isnan().all())
        ((rows, nanoseconds),) = device.copies.observations()
        assert rows == 2
        assert nanoseconds > 0
        assert device.copies.observations() == []
        if virtual:
            nbytes = 2 * 3 * 10 * 24 * 4
            assert device.clock is not None
            assert device.clock.now == pytest.approx(nbytes / 1e9)


def test_the_link_is_as_slow_as_it_is_told() -> None:
    """Two transfers of 2 MB at 40 MB/s; the other rate from then on."""
    bank = bank_of(Shape(8, 3500))  # 1 MB a row
    with device_of(64 * MIB, link=40e6) as device:
        assert device.link_rate == 40e6
        memory = device.empty((8 * bank.slot_bytes,), torch.uint8)
        every = torch.arange(8, dtype=torch.int32)

        def moved(rows: int) -> float:
            began = time.perf_counter()
            count = torch.tensor([rows], dtype=torch.int32)
            device.copies.copy_rows(
                bank.layouts[0].spans, every, every, count, memory, bank.slot_bytes
            )
            device.copies.wait()
            return rows * bank.row_bytes(0) / (time.perf_counter() - began)

        assert 2e6 < moved(2) < 44e6
        device.link_rate = 20e6
        assert 1e6 < moved(2) < 22e6
        device.link_rate = 0.0
        assert moved(8) > 44e6


def test_a_mark_is_reached_once_what_came_before_is_there() -> None:
    bank = bank_of(Shape(4, 200))
    with device_of(link=5e6) as device:
        memory = device.empty((4 * bank.slot_bytes,), torch.uint8)
        every, one = torch.arange(4, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
        marks = []
        for e in range(4):
            at = every[e : e + 1]
            device.copies.copy_rows(bank.layouts[0].spans, at, at, one, memory, bank.slot_bytes)
            marks.append(device.copies.mark())
        slots = bank.layouts[0].rows(memory, 4, bank.slot_bytes)
        device.copies.wait_for(marks[1])
        for e in (0, 1):
            assert torch.equal(slots.down[e], bank.rows(0).down[e])
        device.link_rate = 0.0
        device.copies.wait()
        assert torch.equal(slots.down[3], bank.rows(0).down[3])


@pytest.mark.parametrize("virtual", [False, True])
def test_the_host_pool_writes_its_parts_and_no_others(virtual: bool) -> None:
    bank = bank_of(Shape(5, 9, how="interleaved with biases"))
    with device_of(virtual=virtual) as device:
        rows, x, ops = bank.rows(0), x_of(3), ops_for(device)
        ids = torch.tensor([[1, -1], [4, 1], [-1, -1]], dtype=torch.int32)
        parts, expected = torch.full((3, 2, 24), -7.0), torch.full((3, 2, 24), -7.0)
        layer = expert_layer(rows)
        device.host_pool.alert()
        device.host_pool.ring(x, ids, layer, parts, exact=True)
        device.host_pool.wait()
        ops.experts_parts(x, ids, rows, expected)
        assert torch.equal(parts, expected)
        assert bool((parts[0, 1] == -7).all())
        nobody = torch.full_like(ids, -1)
        device.host_pool.ring(x, nobody, layer, parts, exact=True)
        device.host_pool.wait()
        assert [n for n, _ in device.host_pool.observations()] == [2, 0]
        with pytest.raises(AssertionError):
            device.host_pool.ring(x.T, ids, layer, parts, exact=True)


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "tolist": lambda t: t.tolist(),
    "item": lambda t: t.sum().item(),
    "int": lambda t: int(t[0]),
    "float": lambda t: float(t[0]),
    "truth": lambda t: bool(t[0]),
    "index": lambda t: range(9)[t[0].int()],
    "numpy": lambda t: t.numpy(),
    "array": np.asarray,
    "nonzero": torch.where,
    "equal": lambda t: torch.equal(t, t),
}


@pytest.mark.parametrize("name", READS)
def test_the_host_reads_nothing_while_a_step_is_captured(device: EmulatedDevice, name: str) -> None:
    x = device.zeros((3,))
    graph = device.graph()
    assert graph is not None
    with pytest.raises(DeviceError, match="the host read a value"), graph.recording():
        READS[name](x)
    READS[name](x)  # as ever, afterwards


@pytest.mark.parametrize("make", ["empty", "zeros", "elastic"])
def test_nothing_is_allocated_while_a_step_is_captured(device: EmulatedDevice, make: str) -> None:
    makers: dict[str, Callable[[], object]] = {
        "empty": lambda: device.empty((4,)),
        "zeros": lambda: device.zeros((4,)),
        "elastic": lambda: device.elastic(4096),
    }
    graph = device.graph()
    assert graph is not None
    refusal = pytest.raises(DeviceError, match="an allocation while a step is captured")
    with refusal, graph.recording():
        makers[make]()
    used = device.memory.used
    assert makers[make]() is not None
    assert device.memory.used >= used


def test_a_replay_after_memory_has_moved_is_refused(device: EmulatedDevice) -> None:
    ops = ops_for(device)
    x, weight = torch.randn(2, 8), torch.randn(8)
    graph = device.graph()
    assert graph is not None
    with graph.recording():
        y = ops.rms_norm(x, weight, 1e-6)
    assert graph.foreign == ""
    expected = y.clone()
    y.fill_(float("nan"))
    graph.replay()
    assert torch.equal(y, expected)
    device.moved()
    with pytest.raises(DeviceError, match="names memory that has moved; expected a new one"):
        graph.replay()


def test_a_captured_layer_reads_its_plan_when_it_is_replayed(device: EmulatedDevice) -> None:
    """Counts and ids of copies and of the host's work are the device's, not the capture's."""
    bank = bank_of(Shape(6, 10))
    layout, step = bank.layouts[0], bank.slot_bytes
    memory = device.empty((8 * step,), torch.uint8)
    experts, slots = device.zeros((2,), torch.int32), device.zeros((2,), torch.int32)
    count, ids = device.zeros((1,), torch.int32), device.empty((2, 2), torch.int32)
    x, parts, layer = x_of(2), device.empty((2, 2, 24)), expert_layer(bank.rows(0))
    graph = device.graph()
    assert graph is not None
    with graph.recording():
        device.host_pool.ring(x, ids, layer, parts, exact=True)
        device.copies.copy_rows(layout.spans, experts, slots, count, memory, step)
        device.copies.wait()
        device.host_pool.wait()
    assert graph.foreign == ""
    assert bool(parts.isnan().all())
    experts.copy_(torch.tensor([5, 2]))
    slots.copy_(torch.tensor([3, 6]))
    count.fill_(2)
    ids.copy_(torch.tensor([[1, -1], [0, 4]]))
    graph.replay()
    there = layout.rows(memory, 8, step)
    assert torch.equal(there.gate[3], bank.rows(0).gate[5])
    assert torch.equal(there.gate[6], bank.rows(0).gate[2])
    expected = torch.full((2, 2, 24), float("nan"))
    ops_for(device).experts_parts(x, ids, bank.rows(0), expected)
    assert torch.equal(parts.nan_to_num(-9), expected.nan_to_num(-9))
    assert [n for n, _ in device.copies.observations()] == [0, 2]
    assert [n for n, _ in device.host_pool.observations()] == [0, 3]


def test_no_step_is_captured_where_time_is_charged() -> None:
    with device_of(virtual=True) as device:
        assert device.graph() is None


def threads_now() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_closing_ends_threads_and_gives_memory_back() -> None:
    before = threads_now()
    device = EmulatedDevice(Emulation(memory=64 * MIB, device_threads=2, host_threads=2))
    held = device.elastic(32 * MIB)
    held.resize(20 * MIB)
    assert threads_now() >= before + 4
    assert device.memory.used == 20 * MIB
    device.close()
    device.close()
    assert threads_now() == before
    assert device.memory.used == 0


def test_names_memory_and_refusals() -> None:
    with device_of(5 * MIB, virtual=True) as device:
        assert device.kind == "emulated"
        assert device.name.startswith("emulated, 5 MiB, 1 device and 1 host threads")
        assert device.name.endswith("virtual clock")
        kept = device.zeros((4,), torch.int64)
        assert kept.tolist() == [0] * 4
        assert device.memory.used == 32
        with pytest.raises(CapacityError, match="shrink a cache or raise"):
            device.empty((5 * MIB,), torch.uint8)
    with pytest.raises(DeviceError, match="set fewer threads"):
        EmulatedDevice(Emulation(memory=1, device_threads=-3))


def test_settling_waits_and_does_not_complain(device: EmulatedDevice) -> None:
    """Also where the host's work has failed."""
    bank = bank_of(Shape(3, 10))
    x, parts = x_of(1), torch.empty(1, 1, 24)
    wrong = torch.tensor([[3]], dtype=torch.int32)
    layer = expert_layer(bank.rows(0))
    device.host_pool.ring(x, wrong, layer, parts, exact=True)
    device.settle()
    right = routed([[2]]).ids_TX
    device.host_pool.ring(x, right, layer, parts, exact=True)
    device.host_pool.wait()
    assert not bool(parts.isnan().any())
