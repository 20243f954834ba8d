"""The slots on the device against plain dictionaries, while they are filled and resized."""

from __future__ import annotations

import pytest
import torch
from hetero import Shape, bank_of, device_of
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.device.emulated import EmulatedDevice
from headrace.errors import CapacityError
from headrace.experts.bank import ExpertBank
from headrace.experts.slots import ExpertSlots
from headrace.ops.choose import ops_for
from headrace.planning.facts import ExpertKey

BANK = bank_of(Shape(6, 7), None, Shape(4, 9, dtype=torch.bfloat16), Shape(3, 7, how="fused"))
ROWS = [ExpertKey(layer, e) for layer in BANK.moe_layers for e in range(BANK.rows(layer).count)]
ALL = torch.tensor([0, 1], dtype=torch.int32)


def use(bank: ExpertBank, device: EmulatedDevice, slots: ExpertSlots, keys: list[ExpertKey]) -> int:
    """One layer uses these experts, and all misses are filled if there are slots; the fills."""
    layer = keys[0].layer
    counts = torch.zeros(4, dtype=torch.int32)
    ids = torch.tensor([[key.expert for key in keys]], dtype=torch.int32)
    plan = slots.planned(1, len(keys), 6, counts)
    ops_for(device).plan(ids, slots.layer(layer), slots.cache, ALL, plan)
    spans = bank.layouts[layer].spans
    device.copies.copy_rows(
        spans, plan.fill_experts_E, plan.fill_slots_E, counts[2:3], slots.memory, slots.slot_bytes
    )
    device.copies.wait()
    return int(counts[2])


def check_contents(bank: ExpertBank, slots: ExpertSlots) -> None:
    for (layer, expert), slot in slots.residents().items():
        assert slot < slots.capacity
        here, there = slots.rows(layer), bank.rows(layer)
        for kind in ("gate", "up", "down"):
            assert torch.equal(
                here.__getattribute__(kind)[slot], there.__getattribute__(kind)[expert]
            )


STEP = st.one_of(
    st.tuples(
        st.just("use"), st.sampled_from(BANK.moe_layers), st.sets(st.integers(0, 2), min_size=1)
    ),
    st.tuples(st.just("resize"), st.integers(0, len(ROWS)), st.integers(0, 12)),
    st.tuples(st.just("forget"), st.just(0), st.just(0)),
)


@settings(max_examples=22, deadline=None)
@given(st.lists(STEP, max_size=25), st.booleans())
def test_resizing_against_a_plain_model(steps: list[tuple[str, int, object]], lru: bool) -> None:
    with device_of() as device:
        slots = ExpertSlots(BANK, device, capacity=4, staging=1, lru=lru)
        address, held = slots.memory.data_ptr(), set()
        for what, first, second in steps:
            worth = [int(v) for v in slots.cache.value_R]
            if what == "use":
                assert isinstance(second, set)
                keys = [ExpertKey(first, e) for e in sorted(second)]
                missing = set(keys) - held
                fills = use(BANK, device, slots, keys)
                room = slots.capacity - len(held & set(keys))
                assert fills == min(len(missing), room)
                found = set(slots.residents())
                assert len(found - held) == fills
                assert found - held <= missing
                assert held & set(keys) <= found, "a row in use was evicted"
            elif what == "resize":
                assert isinstance(second, int)
                best = sorted(held, key=lambda key: (worth[ROWS.index(key)], ROWS.index(key)))
                expected = set(best[max(0, len(best) - first) :])
                done = slots.resize(first, second)
                found = set(slots.residents())
                assert found == expected, "shrinking keeps the most valuable"
                assert done.dropped == len(held) - len(found)
                assert (slots.capacity, slots.staging) == (first, second)
                assert len(slots.cache.row_of_S) == first
                assert [int(v) for v in slots.cache.value_R] == worth
                page = 4096
                assert slots.nbytes == -(-(first + second) * slots.slot_bytes // page) * page
            else:
                slots.forget()
                found = set(slots.residents())
                assert found == set()
            held = found
            slots.check()
            check_contents(BANK, slots)
        assert slots.memory.data_ptr() == address
        slots.close()
        assert slots.nbytes == 0


@pytest.mark.parametrize(("capacity", "staging"), [(14, 0), (-1, 0), (3, 13), (3, -1)])
def test_what_cannot_be_is_refused(capacity: int, staging: int) -> None:
    with device_of() as device:
        slots = ExpertSlots(BANK, device, capacity=4, staging=1)
        with pytest.raises(CapacityError, match="expected 0 to"):
            slots.resize(capacity, staging)
        assert (slots.capacity, slots.staging) == (4, 1)


def test_a_refused_resize_changes_nothing() -> None:
    """Also one that gives up slots for more staging."""
    with device_of() as device:
        slots = ExpertSlots(BANK, device, capacity=5, staging=0)
        use(BANK, device, slots, [ExpertKey(0, e) for e in (0, 3, 5)])
        use(BANK, device, slots, [ExpertKey(2, 1)])
        before, epoch = slots.residents(), device.epoch
        device.memory.total = device.memory.used + slots.slot_bytes // 2
        for capacity, staging in ((13, 0), (6, 3), (2, 12)):
            with pytest.raises(CapacityError, match="were asked of a device"):
                slots.resize(capacity, staging)
            assert (slots.capacity, slots.staging) == (5, 0)
            assert slots.residents() == before
            slots.check()
            check_contents(BANK, slots)
        assert device.epoch == epoch, "captured steps are as good as before"
        slots.resize(2, 3)
        assert device.epoch > epoch
        check_contents(BANK, slots)


def test_a_failed_start_leaves_nothing_behind() -> None:
    with device_of(32 << 10) as device:
        with pytest.raises(CapacityError):
            ExpertSlots(BANK, device, capacity=13, staging=12)
        assert device.memory.used == 0


def test_a_resize_waits_for_copies_on_their_way() -> None:
    """They were of a step that failed, and would land in what is another slot now."""
    with device_of(link=2e6) as device:
        slots = ExpertSlots(BANK, device, capacity=2, staging=6)
        layout = BANK.layouts[0]
        every, at = torch.arange(6, dtype=torch.int32), torch.arange(2, 8, dtype=torch.int32)
        count = torch.tensor([6], dtype=torch.int32)
        device.copies.copy_rows(layout.spans, every, at, count, slots.memory, slots.slot_bytes)
        slots.resize(8, 0)
        use(BANK, device, slots, [ExpertKey(0, e) for e in range(6)])
        check_contents(BANK, slots)
