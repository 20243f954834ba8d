"""Resizing a running engine: pools keep what is in them, no request is lost, no token changes, and
what a device refuses changes nothing. The model is `fake_forward`; the pools are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from engines import run
from fake_forward import END, VOCAB, FakeModel, truth
from hetero import Shape, bank_of, device_of, hybrid_of
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cache.lease import Moves
from headrace.device.cpu import CpuDevice
from headrace.device.emulated import EmulatedDevice
from headrace.engine.elastic import Elastic, Tiers
from headrace.engine.engine import Engine
from headrace.engine.opening import limits_of
from headrace.engine.pools import Pools, Sizes, clear_states
from headrace.engine.request import Request, Sampling
from headrace.engine.runner import Runner
from headrace.engine.seq import Seq
from headrace.errors import CapacityError
from headrace.experts.placement import Resident
from headrace.models.state import KvPool, RecurrentPool
from headrace.ops.choose import ops_for
from headrace.planning.budget import CacheNeed, MemoryBudget
from headrace.planning.elastic import Bounds, Limits
from headrace.planning.facts import KvNeed, RecurrentNeed, StateNeed
from headrace.planning.resolve import Choice, ExecutionPlan

BLOCK = 4
BLOCK_BYTES = 2 * 4 * BLOCK  # float32 keys and values of width 1
KV, RECURRENT = KvNeed(key=1, value=1), RecurrentNeed(matrix=(1, 1, 1), conv=(1, 1))
BANK = bank_of(Shape(6, 7), Shape(6, 7))
ROWS = sum(BANK.facts.experts)


def plan_of(budget: MemoryBudget, context: int, sequences: int, most: int) -> ExecutionPlan:
    return ExecutionPlan(
        device=Choice("cpu", "test"),
        dtype=Choice("float32", "test"),
        threads=Choice(1, "test"),
        context=Choice(context, "test"),
        sequences=Choice(sequences, "test"),
        state_slots=Choice(budget.state_slots, "test"),
        kv_blocks=Choice(budget.kv_blocks, "test"),
        step_tokens=Choice(12, "test"),
        max_queued=64,
        memory=budget,
        need=CacheNeed(most * BLOCK, sequences, BLOCK, 4),
    )


def limits_with(least: int, most: int, states: int) -> Limits:
    slots = Bounds(1, ROWS)
    return Limits(
        slots=slots,
        kv_blocks=Bounds(least, most),
        state_slots=Bounds(min(1, states), states),
        unasked=slots,
        rows=ROWS,
        block_bytes=BLOCK_BYTES,
        state_bytes=8,
    )


class Served:
    """An engine over the fake model with real pools, experts' slots and all that is resized."""

    def __init__(
        self,
        device: EmulatedDevice,
        *,
        blocks: int,
        context: int,
        recurrent: bool = True,
        sequences: int = 6,
        capacity: int = 6,
        most: int = 64,
    ) -> None:
        states = sequences if recurrent else 0
        slot = BANK.slot_bytes
        budget = MemoryBudget(
            1 << 40,
            0,
            0,
            8 * states,
            blocks * BLOCK_BYTES,
            states,
            blocks,
            BLOCK,
            capacity,
            0,
            slot,
        )
        plan = plan_of(budget, context, sequences, most)
        limits = limits_of(plan, VOCAB, frozenset({END}))
        needs: list[StateNeed] = [KV, RECURRENT] if recurrent else [KV]
        self.pools = Pools(
            needs,
            device,
            Sizes((1 + blocks) * BLOCK, states),
            Sizes((1 + most) * BLOCK, states),
            torch.float32,
        )
        self.device, self.model = device, FakeModel(BLOCK, 0)
        runner = Runner(
            self.model.forward,
            self.pools,
            step_tokens=12,
            sequences=sequences,
            block_tokens=BLOCK,
            sequence_blocks=-(-context // BLOCK),
        )
        self.engine = Engine(plan, runner, limits)
        self.scheduler = self.engine._scheduler
        self.placement = hybrid_of(BANK, device, capacity=capacity, staging=0)
        self.elastic = Elastic(
            self.scheduler,
            Tiers(self.pools),
            self.placement,
            budget,
            limits_with(-(-context // BLOCK), most, states),
        )

    def resize(self, blocks: int, states: int, slots: int) -> None:
        """And everything agrees afterwards, whether it was done or refused."""
        wanted = self.wanted(blocks, states, slots)
        done = self.elastic.resize(wanted)
        assert (done.after.kv_blocks, done.after.state_slots) == (
            wanted.kv_blocks,
            wanted.state_slots,
        )
        self.check()

    def wanted(self, blocks: int, states: int, slots: int) -> MemoryBudget:
        """As near as the limits allow."""
        limits = self.elastic.limits
        blocks, states = limits.kv_blocks.clamp(blocks), limits.state_slots.clamp(states)
        return replace(
            self.elastic.budget,
            kv_blocks=blocks,
            kv_bytes=blocks * limits.block_bytes,
            state_slots=states,
            state_bytes=states * limits.state_bytes,
            expert_slots=limits.slots.clamp(slots),
        )

    def check(self) -> None:
        budget, limits = self.elastic.budget, self.scheduler.limits
        self.engine.check()
        self.placement.slots.check()
        assert (budget.kv_blocks, budget.state_slots) == (limits.blocks, limits.state_slots)
        assert self.pools.sizes == Sizes((1 + limits.blocks) * BLOCK, limits.state_slots)
        assert budget.expert_slots == self.placement.slots.capacity
        assert self.scheduler.blocks.count == limits.blocks


RESIZE = st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(1, ROWS))
# Prompts of few different tokens: many begin alike, and share what is cached.
REQUEST = st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=20), st.integers(1, 12))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(REQUEST, min_size=1, max_size=7),
    st.lists(st.none() | RESIZE, max_size=40),
    st.booleans(),
)
def test_no_request_is_lost_and_no_token_changes(
    requests: list[tuple[list[int], int]],
    resizes: list[tuple[int, int, int] | None],
    recurrent: bool,
) -> None:
    with device_of() as device:
        served = Served(device, blocks=24, context=32, recurrent=recurrent)
        engine, pending = served.engine, iter(resizes)
        asked = [
            Request(tuple(p), Sampling(temperature=0, max_tokens=n, ignore_eos=True))
            for p, n in requests
        ]
        tokens: dict[int, list[int]] = {}
        for so_far in run(engine, asked):
            tokens = so_far
            resize = next(pending, None)
            if resize is not None:
                served.resize(*resize)
        for request, found in zip(asked, tokens.values(), strict=True):
            assert found == truth(request.tokens, request.sampling, recurrent=recurrent, context=32)


def held(seq: Seq) -> tuple[tuple[int, ...], int]:
    assert seq.lease is not None
    return seq.lease.blocks, seq.lease.state


def test_what_is_renumbered_takes_its_contents_along() -> None:
    """The oldest request ends; the others' blocks and state slots lie beyond the new ends."""
    with device_of() as device:
        served = Served(device, blocks=24, context=32)
        engine = served.engine
        asked = [
            Request(
                tuple(range(7 * i + 1, 7 * i + 8)),
                Sampling(temperature=0, max_tokens=n, ignore_eos=True),
            )
            for i, n in enumerate((1, 14, 15))
        ]
        found: dict[int, list[int | None]] = {engine.submit(request): [] for request in asked}
        while served.scheduler.running != 2:
            for event in engine.step():
                found[event.request].append(event.token)
        before = {seq.id: held(seq) for seq in served.scheduler._running}
        served.resize(8, 2, 3)
        after = {seq.id: held(seq) for seq in served.scheduler._running}
        assert after.keys() == before.keys()
        assert sorted(state for _, state in after.values()) == [0, 1]
        assert after != before
        while not engine.idle:
            for event in engine.step():
                found[event.request].append(event.token)
        for request, tokens in zip(asked, found.values(), strict=True):
            assert tokens == truth(request.tokens, request.sampling, recurrent=True)


def test_a_refusal_in_mid_growth_changes_nothing() -> None:
    """Keys find memory and values do not; or one thing has shrunk and another finds none."""
    with device_of() as device:
        served = Served(device, blocks=2048, context=32, sequences=6, capacity=8, most=8192)
        engine = served.engine
        request = Request((5, 6, 7), Sampling(temperature=0, max_tokens=20, ignore_eos=True))
        engine.submit(request)
        found = [e.token for _ in range(6) for e in engine.step()]
        served.resize(2048, 2, 8)
        before, used = served.elastic.budget, device.memory.used
        total = device.memory.total
        device.memory.total = used + 40960
        with pytest.raises(CapacityError, match="were asked of a device"):
            served.elastic.resize(served.wanted(4096, 6, 8))
        served.check()
        assert served.elastic.budget == before
        assert device.memory.used == used
        device.memory.total = used
        with pytest.raises(CapacityError):
            served.elastic.resize(served.wanted(8192, 1, 7))
        served.check()
        assert served.elastic.budget == before
        device.memory.total = total
        with pytest.raises(CapacityError, match="expected at least 8 and 1"):
            served.elastic.resize(replace(before, kv_blocks=7, expert_slots=3))
        served.check()
        assert served.elastic.budget == before
        served.resize(4096, 6, 12)
        while not engine.idle:
            found += [e.token for e in engine.step()]
        assert found == truth(request.tokens, request.sampling, recurrent=True)


def test_experts_get_what_there_is() -> None:
    with device_of() as device:
        served = Served(device, blocks=16, context=32, capacity=2)
        slot = BANK.slot_bytes
        device.memory.total = device.memory.used + 4 * slot
        done = served.elastic.resize(replace(served.elastic.budget, expert_slots=ROWS))
        assert 2 < done.after.expert_slots <= 7  # the last page may hold another
        assert done.after.expert_slots == served.placement.slots.capacity
        served.check()


def test_preemptions_and_dropped_rows_are_counted() -> None:
    with device_of() as device:
        served = Served(device, blocks=24, context=32)
        sampling = Sampling(temperature=0, max_tokens=9, ignore_eos=True)
        for first in (1, 21, 41):  # nothing in common, so that no block is shared
            served.engine.submit(Request(tuple(range(first, first + 12)), sampling))
        for _ in range(4):
            served.engine.step()
        assert served.scheduler.running == 3
        done = served.elastic.resize(replace(served.elastic.budget, kv_blocks=8))
        assert done.preempted >= 1
        assert done.before.kv_blocks == 24
        assert served.scheduler.running + served.scheduler.waiting == 3


def test_without_slots_only_keys_are_resized() -> None:
    with device_of() as device:
        served = Served(device, blocks=16, context=32)
        resident = Resident(BANK.rows, ops_for(device))
        elastic = Elastic(
            served.scheduler,
            Tiers(served.pools),
            resident,
            served.elastic.budget,
            served.elastic.limits,
        )
        done = elastic.resize(replace(elastic.budget, kv_blocks=20))
        assert (done.after.kv_blocks, done.dropped_rows) == (20, 0)
        assert done.after.expert_slots == served.placement.slots.capacity


@pytest.fixture(params=["cpu", "emulated"])
def pools(request: pytest.FixtureRequest) -> Iterator[Pools]:
    device = CpuDevice(1) if request.param == "cpu" else device_of()
    needs = [KvNeed(key=6, value=4, kv_heads=2), None, RecurrentNeed((2, 3, 5), (4, 3)), KV]
    with device:
        yield Pools(needs, device, Sizes(40, 5), Sizes(400, 9), torch.bfloat16)


def test_pools_keep_their_contents_where_they_are(pools: Pools) -> None:
    first, dense, second, third = pools.state
    assert isinstance(first, KvPool)
    assert isinstance(second, RecurrentPool)
    assert isinstance(third, KvPool)
    assert dense is None
    assert (first.keys.shape, first.values.shape) == ((40, 2, 3), (40, 2, 2))
    assert (second.matrix.shape, second.conv.shape) == ((5, 2, 3, 5), (5, 4, 3))
    assert (first.keys.dtype, second.matrix.dtype) == (torch.bfloat16, torch.float32)
    tensors = [first.keys, first.values, second.matrix, second.conv, third.keys, third.values]
    truths = []
    for i, tensor in enumerate(tensors):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(i)))
        truths.append(tensor.clone())
    addresses = [t.data_ptr() for t in tensors]

    def now() -> list[torch.Tensor]:
        a, _, b, c = pools.state
        assert isinstance(a, KvPool)
        assert isinstance(b, RecurrentPool)
        assert isinstance(c, KvPool)
        return [a.keys, a.values, b.matrix, b.conv, c.keys, c.values]

    pools.resize(Sizes(400, 9), block_tokens=BLOCK)
    grown = now()
    assert [t.data_ptr() for t in grown] == addresses
    for tensor, expected in zip(grown, truths, strict=True):
        assert torch.equal(tensor[: len(expected)], expected)
    # Blocks 8 and 9 move to 2 and 5; state slot 4 to 0.
    pools.resize(Sizes(32, 3), Moves({8: 2, 9: 5}, {4: 0}), block_tokens=BLOCK)
    for tensor, expected in zip(now(), truths, strict=True):
        if len(tensor) == 32:
            assert torch.equal(tensor[8:12], expected[32:36])
            assert torch.equal(tensor[20:24], expected[36:40])
            assert torch.equal(tensor[:8], expected[:8])
            assert torch.equal(tensor[24:], expected[24:32])
        else:
            assert torch.equal(tensor[0], expected[4])
            assert torch.equal(tensor[1:], expected[1:3])
    clear_states(pools.state, [1])
    again = now()
    assert not again[2][1].any()
    assert torch.equal(again[2][2], truths[2][2])


def test_pools_beyond_the_device_are_refused_as_a_whole() -> None:
    needs = [KvNeed(key=512, value=512), KvNeed(key=512, value=512)]
    with device_of(1 << 20) as device:
        pools = Pools(needs, device, Sizes(64, 0), Sizes(4096, 0), torch.float32)
        used, state = device.memory.used, pools.state
        with pytest.raises(CapacityError):
            pools.resize(Sizes(160, 0), block_tokens=BLOCK)  # the first layer would fit
        assert device.memory.used == used
        assert pools.state is state
        assert pools.sizes == Sizes(64, 0)
        pools.resize(Sizes(100, 0), block_tokens=BLOCK)
    with device_of(1 << 20) as device:
        with pytest.raises(CapacityError):
            Pools(needs, device, Sizes(600, 0), Sizes(600, 0), torch.float32)
        assert device.memory.used == 0
