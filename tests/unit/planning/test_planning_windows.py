"""Windows in the plan: blocks against counting them, and what the saved memory is good for."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import EngineConfig
from headrace.errors import CapacityError
from headrace.planning.budget import CacheNeed, DeviceNeed, device_memory, plan_memory
from headrace.planning.facts import KvNeed, ModelFacts, RecurrentNeed
from headrace.planning.machine import Machine
from headrace.planning.overflow import plan_overflow
from headrace.planning.resolve import ExecutionPlan, resolve
from headrace.planning.windows import blocks_each, windows_of

GIB = 1 << 30


def facts(*windows: int | None, recurrent: bool = False) -> ModelFacts:
    """Layers with these windows; None = the whole context."""
    needs = tuple(KvNeed(512, 512, window, 8) for window in windows)
    layers = len(windows)
    return ModelFacts(
        family="test",
        layers=layers,
        hidden=2880,
        vocab=1000,
        max_context=131_072,
        state=(*needs, *([RecurrentNeed((4, 4, 4), (4, 4))] if recurrent else [])),
        experts=(0,) * layers,
        top_k=(0,) * layers,
        expert_bytes=(0,) * layers,
        total_bytes=GIB,
        dtype="bfloat16",
    )


def need(context: int = 131_072, sequences: int = 16, states: int = 0) -> CacheNeed:
    return CacheNeed(context, sequences, 16, 2, states=states)


@given(window=st.integers(1, 60), size=st.integers(1, 20), context=st.integers(1, 90))
def test_blocks_of_a_sequence(window: int, size: int, context: int) -> None:
    held = 0
    for at in range(context + 1):
        seen = {position // size for position in range(max(0, at - window + 1), at)}
        held = max(held, len(seen))
    each = blocks_each(window, size, context)
    assert min(held + 1, -(-context // size)) <= each <= held + 2


def test_a_window_costs_no_context() -> None:
    half, whole = facts(128, None), facts(None, None)
    plans = [
        plan_memory(f, ram_total=16 * GIB, ram_free=4 * GIB, need=need(states=64))
        for f in (half, whole)
    ]
    assert plans[0].kv_bytes // plans[0].kv_blocks * 2 == plans[1].kv_bytes // plans[1].kv_blocks
    assert 1.9 * plans[1].kv_tokens < plans[0].kv_tokens < 2 * plans[1].kv_tokens
    assert plans[0].state_slots == 64
    # 127 tokens lie in at most nine blocks of 16, and one is copied.
    assert plans[0].state_bytes == 64 * 10 * 16 * 1024 * 2
    assert (plans[1].state_slots, plans[1].state_bytes) == (0, 0)


def test_a_recurrent_model_with_windows_has_one_kind_of_slots() -> None:
    both = facts(128, None, recurrent=True)
    plan = plan_memory(both, ram_total=16 * GIB, ram_free=8 * GIB, need=need())
    recurrent = both.state_bytes_per_sequence()
    assert recurrent == 4 * (64 + 16)
    assert plan.state_bytes == 16 * (recurrent + 10 * 16 * 1024 * 2)


def test_windows_of_several_sizes() -> None:
    found = windows_of(facts(700, 128, None, 128), block_tokens=16, context=4096, step_tokens=512)
    assert [(w.tokens, w.each, w.step) for w in found] == [(128, 10, 32), (700, 46, 32)]
    assert found[0].blocks(3) == 62


def test_windows_alone_take_all_that_caches_have() -> None:
    plan = plan_memory(facts(4096), ram_total=16 * GIB, ram_free=2 * GIB, need=need(states=32))
    assert plan.kv_bytes == 0
    assert plan.kv_tokens >= 131_072
    assert plan.state_slots == 32


def test_what_would_fit_is_said_and_fits() -> None:
    wide = facts(*[100_000] * 40)
    free = GIB + (2 * GIB)
    with pytest.raises(CapacityError, match="lower the context to ") as caught:
        plan_memory(wide, ram_total=4 * GIB, ram_free=free, need=need())
    assert caught.value.fix is not None
    fits = int(caught.value.fix.split()[-1])
    assert 10_000 < fits < 100_000
    plan = plan_memory(wide.within(fits), ram_total=4 * GIB, ram_free=free, need=need(fits, 1))
    assert plan.kv_tokens >= fits
    more = need(fits + 512, 1)
    plan = plan_memory(wide.within(more.context), ram_total=4 * GIB, ram_free=free, need=more)
    assert plan.kv_tokens < more.context


@pytest.mark.parametrize("asked", [True, False])
def test_saved_states_leave_room_for_a_promised_context(asked: bool) -> None:
    half = facts(*[128, None] * 18)
    wanted = dataclasses.replace(need(states=128), asked=asked)
    plan = plan_memory(half, ram_total=8 * GIB, ram_free=int(6.4 * GIB), need=wanted)
    assert (plan.kv_tokens >= wanted.context) == asked
    assert (plan.state_slots == 128) != asked
    assert plan.state_slots >= 16


def test_a_promised_context_beside_the_windows_of_many_sequences() -> None:
    wide = facts(*[4096, None] * 18)
    asked = dataclasses.replace(need(), asked=True)
    plan = device_memory(wide, 7 * GIB, DeviceNeed(asked, 512))
    assert plan.kv_tokens >= asked.context
    assert 1 <= plan.state_slots < 16


def test_a_window_of_the_whole_context_is_none() -> None:
    both = facts(128, 4096)
    assert set(both.within(4097).window_elements()) == {128, 4096}
    assert set(both.within(4096).window_elements()) == {128}
    assert both.within(4096).kv_bytes_per_token(2) == 2048
    assert dataclasses.replace(both, state=()).window_elements() == {}


def planned(free: int, *windows: int | None, recurrent: bool = False) -> ExecutionPlan:
    machine = Machine("tight", 2, 2, 4 * GIB, free, ("scalar",))
    return resolve(EngineConfig(), machine, facts(*windows, recurrent=recurrent))


def test_a_context_below_the_window_has_none() -> None:
    """Forty layers of 2 KiB a token each; a window of 100,000 takes 7.6 GiB a sequence."""
    free = GIB + 2 * GIB
    plan = planned(free, *[100_000] * 40)
    assert plan.state_slots.value == 0
    assert plan.context.value == 1536 * (1 << 20) // (40 * 2048 * 16) * 16  # half a GiB is kept
    assert plan.need.context == 100_000
    # As if the model had never had them.
    plain = planned(free, *[None] * 40)
    assert plan.kv_blocks.value == plain.kv_blocks.value


def test_of_several_windows_the_wide_ones_go() -> None:
    plan = planned(GIB + 2 * GIB, *[128] * 20, *[100_000] * 20)
    assert plan.state_slots.value >= 16
    assert 20_000 < plan.context.value < 100_000
    assert plan.need.context == 100_000
    roomy = planned(64 * GIB, *[128] * 20, *[100_000] * 20)
    assert roomy.need.context == roomy.context.value == 131_072


def test_it_is_never_less_than_with_windows() -> None:
    for free in range(GIB + 600 * (1 << 20), 4 * GIB, 150 * (1 << 20)):
        plan = planned(free, *[8192] * 30, *[None] * 2, recurrent=True)
        assert plan.context.value == min(plan.memory.kv_tokens, plan.need.context)
        wide = [n for n in (8192,) if n < plan.need.context]
        assert all(n <= plan.memory.kv_tokens for n in wide)


@pytest.mark.parametrize("windows", [(None, None), (128, None), (128,)])
def test_a_host_tier_has_blocks_and_states_or_nothing(windows: tuple[int | None, ...]) -> None:
    recurrent = facts(*windows, recurrent=True)
    cache = need(1000)
    state, block = cache.state_bytes(recurrent), recurrent.kv_bytes_per_token(2) * 16
    for asked in (0, block, state, state + block - 1):
        made = plan_overflow(recurrent, cache, ram_left=0, asked=asked)
        if asked < state + block:
            assert (made.blocks, made.states) == (0, 0)
            assert "state" in made.reason
    least = plan_overflow(recurrent, cache, ram_left=0, asked=state + block)
    assert least.states >= 1
    assert least.blocks >= (1 if block else 0)
    many = plan_overflow(recurrent, cache, ram_left=0, asked=100 * (state + block))
    assert many.states > 1
    assert bool(many.blocks) == bool(block)
    assert many.states * state + many.blocks * block <= 100 * (state + block)


def test_blocks_that_hold_nothing_are_counted_all_the_same() -> None:
    only_windows = dataclasses.replace(facts(128, 128), max_context=1 << 24)
    for sequences in (16, 1024):
        memory = plan_memory(
            only_windows, ram_total=16 * GIB, ram_free=4 * GIB, need=need(1 << 24, sequences)
        )
        assert memory.kv_bytes == 0
        assert memory.kv_tokens >= 1 << 24  # one sequence of the promised length
        assert memory.kv_blocks <= 1 << 22  # account of them takes 200 MB
