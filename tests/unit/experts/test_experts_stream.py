"""Prompts: what moves over the link, and where to. Bytes are counted by the virtual clock."""

from __future__ import annotations

import pytest
import torch
from hetero import HIDDEN, Shape, bank_of, device_of, hybrid_of, routed, x_of

from headrace.device.emulated import EmulatedDevice
from headrace.experts.placement import Hybrid, Prefill
from headrace.experts.slots import ExpertSlots
from headrace.experts.stream import LayerStream
from headrace.ops.choose import ops_for
from headrace.planning.facts import ExpertKey

BANK = bank_of(
    Shape(6, 7),
    None,
    Shape(4, 12, top_k=1, dtype=torch.bfloat16),
    Shape(5, 7, how="interleaved with biases"),
    Shape(6, 7),
)


def moved(device: EmulatedDevice) -> int:
    assert device.clock is not None
    return device.clock.link.nbytes


def decode(hybrid: Hybrid, ids: dict[int, list[list[int]]]) -> None:
    """One step that routes so, for the sake of what it leaves in the cache."""
    tokens = len(next(iter(ids.values())))
    hybrid.begin(tokens, prefill=False)
    for layer, chosen in ids.items():
        hybrid(layer, x_of(tokens), routed(chosen))
    hybrid.finish()


@pytest.mark.parametrize("capacity", [0, 3, 9, 21])
def test_every_row_that_is_not_resident_moves_and_no_other(capacity: int) -> None:
    with device_of(virtual=True) as device:
        hybrid = hybrid_of(BANK, device, capacity=capacity, staging=12)
        if capacity:
            hybrid.begin(2, prefill=False)
            for layer in BANK.moe_layers:
                top_k = BANK.facts.top_k[layer]
                hybrid(layer, x_of(2), routed([[0, 3][:top_k], [2, 1][:top_k]]))
            hybrid.finish()
        slots = hybrid.slots
        held, half = slots.residents(), 6
        stream = LayerStream(BANK, slots, device, ops_for(device))
        assert stream.staging == 12
        stream.begin()
        for turn, layer in enumerate(BANK.moe_layers):
            before = moved(device)
            slot_of_E = stream.take(layer).tolist()
            if turn + 1 < len(BANK.moe_layers):  # the next one is on its way meanwhile
                after = BANK.moe_layers[turn + 1]
                absent = [e for e in range(BANK.rows(after).count) if (after, e) not in held]
                assert moved(device) - before == len(absent) * BANK.row_bytes(after)
            else:
                assert moved(device) == before
            first = slots.capacity + half * (turn % 2)
            for expert, slot in enumerate(slot_of_E):
                there = held.get(ExpertKey(layer, expert))
                assert slot == there or (there is None and first <= slot < first + half)
                for kind in ("gate", "up", "down"):
                    here = slots.rows(layer).__getattribute__(kind)[slot]
                    assert torch.equal(here, BANK.rows(layer).__getattribute__(kind)[expert])
            assert len(set(slot_of_E)) == len(slot_of_E)
        assert slots.residents() == held, "a prompt evicts nothing"


def test_a_layer_alone_is_streamed_too() -> None:
    bank = bank_of(None, Shape(3, 7), None)
    with device_of(virtual=True) as device:
        slots = ExpertSlots(bank, device, capacity=1, staging=6)
        stream = LayerStream(bank, slots, device, ops_for(device))
        for _ in range(2):
            stream.begin()
            assert sorted(stream.take(1).tolist()) == [1, 2, 3]
        assert moved(device) == 2 * 3 * bank.row_bytes(1)


def test_the_next_layer_is_copied_beside_this_one() -> None:
    """With copies as slow as everything else, a chunk takes about as long as its copies."""
    bank = bank_of(*[Shape(4, 7)] * 4)
    with device_of(virtual=True) as device:
        clock = device.clock
        assert clock is not None
        slots = ExpertSlots(bank, device, capacity=0, staging=8)
        stream = LayerStream(bank, slots, device, ops_for(device))
        layer_s = 4 * bank.row_bytes(0) / clock.row.link
        stream.begin()
        for layer in range(4):
            stream.take(layer)
            assert clock.now == pytest.approx((layer + 1) * layer_s)
            clock.kernel(round(layer_s * 0.9 * 1e9), 0)
        assert clock.now == pytest.approx(4.9 * layer_s, rel=1e-3)


CHUNK = {
    0: [[0, 1], [1, 5], [0, 5], [5, 1], [1, 0]],
    2: [[2], [2], [3], [2], [2]],
    3: [[4, 0], [0, 4], [4, 0], [0, 4], [0, 1]],
    4: [[2, 3], [2, 3], [2, 3], [2, 3], [3, 2]],
}


@pytest.mark.parametrize("fill", ["all", "none"])
@pytest.mark.parametrize("staging", [0, 2, 5, 12])
@pytest.mark.parametrize("how", list(Prefill))
def test_five_tokens_on_demand_move_what_they_are_routed_to(
    how: Prefill, staging: int, fill: str
) -> None:
    with device_of(virtual=True) as device:
        hybrid = hybrid_of(BANK, device, capacity=4, staging=staging, fill=fill, how=how)
        for layer, expert in ((0, 1), (4, 3)):
            decode(hybrid, {layer: [[expert]]})
        held = hybrid.slots.residents()
        assert len(held) == (2 if fill == "all" else 0)
        values = hybrid.slots.cache.value_R.clone()
        ops, x = ops_for(device), x_of(5)
        before = moved(device)
        hybrid.begin(5, prefill=True)
        streamed = how is Prefill.STREAM and staging == 12
        bytes_seen = 0
        for layer in BANK.moe_layers:
            routing = routed(CHUNK[layer])
            y = hybrid(layer, x, routing)
            assert torch.equal(y, ops.experts(x, routing, BANK.rows(layer)))
            used = {e for row in CHUNK[layer] for e in row}
            if streamed:
                used = set(range(BANK.rows(layer).count))
            absent = [e for e in used if (layer, e) not in held]
            fills = len(absent) if streamed else min(len(absent), staging)
            bytes_seen += (fills if fill == "all" or streamed else 0) * BANK.row_bytes(layer)
        hybrid.finish()
        assert moved(device) - before == bytes_seen
        assert hybrid.slots.residents() == held
        assert not torch.equal(hybrid.slots.cache.value_R, values), "a chunk is evidence"
        assert x.shape == (5, HIDDEN)


def test_the_bank_is_as_odd_as_meant() -> None:
    assert BANK.facts.top_k == (2, 0, 1, 2, 2)
    assert len(set(BANK.facts.expert_bytes)) == 4
