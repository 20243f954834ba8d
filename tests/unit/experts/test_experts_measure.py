"""What `measure` finds is what was set: a throttled link at its rate, a slower side as slower."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from headrace.device.emulated import EmulatedDevice, Emulation
from headrace.errors import CapacityError
from headrace.experts.bank import ExpertBank
from headrace.experts.measure import fitted, measure
from headrace.ops.table import Activation, ExpertRows
from headrace.planning.facts import ModelFacts

MIB = 1 << 20
HIDDEN, WIDTH, EXPERTS, LAYERS = 256, 256, 12, 3
ROW = 3 * HIDDEN * WIDTH * 4  # 768 KiB


def bank_of(count: int = EXPERTS, layers: int = LAYERS, hidden: int = HIDDEN) -> ExpertBank:
    def rows() -> ExpertRows:
        gate, up = torch.randn(2, count, WIDTH, hidden) * 0.01
        down = torch.randn(count, hidden, WIDTH) * 0.01
        return ExpertRows(list(gate), list(up), list(down), Activation.SILU)

    facts = ModelFacts(
        family="test",
        layers=layers,
        hidden=hidden,
        vocab=9,
        max_context=99,
        state=(None,) * layers,
        experts=(count,) * layers,
        top_k=(2,) * layers,
        expert_bytes=(3 * hidden * WIDTH * 4,) * layers,
        total_bytes=0,
        dtype="float32",
    )
    return ExpertBank([rows() for _ in range(layers)], facts)


@pytest.fixture(scope="module")
def bank() -> ExpertBank:
    return bank_of()


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(Emulation(memory=64 * MIB, link=0.5e9, exact=True)) as made:
        yield made


def test_the_line_through_exact_points_is_found() -> None:
    seconds = {n: [0.002 + n * 1000 / 5e5] * 3 for n in (1, 2, 4, 8)}
    line = fitted(1000, seconds)
    assert line.fixed_s == pytest.approx(0.002)
    assert line.rate == pytest.approx(5e5)


def test_one_late_round_moves_nothing() -> None:
    seconds = {n: [n * 1e-3] * 4 + [9.0] for n in (1, 2, 4, 8)}
    assert fitted(1000, seconds).rate == pytest.approx(1e6)


@pytest.mark.parametrize(
    "seconds",
    [
        {1: [0.2], 2: [0.1]},  # more rows in less time
        {1: [0.1], 2: [0.3]},  # a cost below zero
        {1: [0.1]},  # a layer with one expert
    ],
)
def test_noise_never_makes_a_negative_cost(seconds: dict[int, list[float]]) -> None:
    line = fitted(1000, seconds)
    assert line.fixed_s == 0
    rows, times = sum(seconds), sum(t for each in seconds.values() for t in each)
    assert line.rate == pytest.approx(1000 * rows / times)


@pytest.mark.slow
def test_the_link_is_measured_at_the_rate_that_was_set(
    bank: ExpertBank, device: EmulatedDevice
) -> None:
    stages: list[str] = []
    row = measure(bank, device, bank.moe_layers, stages.append)
    assert stages == ["link alone", "host alone", "both at once"]
    assert row.link == pytest.approx(0.5e9, rel=0.1)
    assert 0 < row.link_shared <= row.link
    assert 0 < row.host_shared <= row.host
    # Wide, because others may use this machine: a link that is slow by its rate has time to spare.
    assert row.link_shared > 0.1 * row.link
    assert row.fill_s < 4 * ROW / row.link
    assert device.memory.used == 0


@pytest.mark.slow
def test_a_slower_link_is_seen_as_such(bank: ExpertBank, device: EmulatedDevice) -> None:
    fast = measure(bank, device, bank.moe_layers)
    device.link_rate = 0.125e9
    slow = measure(bank, device, bank.moe_layers)
    assert slow.link == pytest.approx(fast.link / 4, rel=0.1)


@pytest.mark.parametrize(("count", "hidden"), [(1, 64), (2, 64), (5, 8)])
def test_small_layers_can_be_measured(count: int, hidden: int) -> None:
    """Rows of a few kilobytes, and fewer of them than a batch takes."""
    with EmulatedDevice(Emulation(memory=8 * MIB, exact=True)) as device:
        bank = bank_of(count, 1, hidden)
        row = measure(bank, device, bank.moe_layers)
    assert row.link > 0
    assert row.host > 0


def test_no_room_for_a_few_rows_is_told(bank: ExpertBank) -> None:
    with EmulatedDevice(Emulation(memory=ROW, exact=True)) as device:
        with pytest.raises(CapacityError, match=r"emulated\.memory"):
            measure(bank, device, bank.moe_layers)
        assert device.memory.used == 0
