"""Resizing while serving: nonsense is refused with the limits named, and nothing swings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CapacityError, HeadraceError, RequestError
from headrace.planning.budget import CacheNeed, MemoryBudget
from headrace.planning.elastic import (
    Bounds,
    Limits,
    Use,
    after_failure,
    at_rest,
    limits_for,
    parse_resize,
    rebalance,
)
from headrace.planning.facts import KvNeed, ModelFacts, RecurrentNeed

MIB = 1 << 20
FACTS = ModelFacts(
    family="test",
    layers=3,
    hidden=64,
    vocab=100,
    max_context=4096,
    state=(KvNeed(256, 256), RecurrentNeed((MIB // 4 - 10, 1, 1), (10, 1)), None),
    experts=(0, 64, 64),
    top_k=(0, 4, 4),
    expert_bytes=(0, MIB, MIB),
    total_bytes=200 * MIB,
    dtype="bfloat16",
)
NEED = CacheNeed(context=1024, sequences=8, block_tokens=16, element_bytes=2)
BLOCK = 16 * 512 * 2
# 72 beside the experts, 8 reserve, 4 workspace, 8 state, 2 KV (128 blocks), 60 + 16 slots
NOW = MemoryBudget(
    free=180 * MIB,
    weights=72 * MIB,
    reserve=8 * MIB,
    state_bytes=8 * MIB,
    kv_bytes=128 * BLOCK,
    state_slots=8,
    kv_blocks=128,
    block_tokens=16,
    expert_slots=60,
    staging_slots=16,
    slot_bytes=MIB,
    workspace=4 * MIB,
)
LIMITS = limits_for(FACTS, NOW, NEED, context=1024, placement="hybrid")


def test_the_limits() -> None:
    assert (
        Limits(
            slots=Bounds(1, 128),
            kv_blocks=Bounds(64, 512),
            state_slots=Bounds(1, 8),
            unasked=Bounds(4, 60),
            rows=128,
            block_bytes=BLOCK,
            state_bytes=MIB,
            most_free=180 * MIB,
        )
        == LIMITS
    )
    assert NOW.used == 170 * MIB


def test_what_is_asked_for_and_nothing_else() -> None:
    made = parse_resize({"experts": "40 slots"}, NOW, LIMITS)
    assert made == replace(NOW, expert_slots=40)
    assert parse_resize({"experts": "50%"}, NOW, LIMITS).expert_slots == 64
    assert parse_resize({"experts": "8MiB"}, NOW, LIMITS).expert_slots == 8
    assert parse_resize({"experts": "auto"}, NOW, LIMITS).expert_slots == 70
    made = parse_resize({"kv_tokens": 4090}, NOW, LIMITS)
    assert (made.kv_blocks, made.kv_bytes, made.expert_slots) == (256, 256 * BLOCK, 60)
    made = parse_resize({"state_slots": 2}, NOW, LIMITS)
    assert (made.state_slots, made.state_bytes) == (2, 2 * MIB)


def test_a_total_is_made_true_by_the_experts() -> None:
    assert parse_resize({"device_bytes": 150 * MIB}, NOW, LIMITS).expert_slots == 40
    assert parse_resize({"device_bytes": 111 * MIB}, NOW, LIMITS).expert_slots == 1
    assert parse_resize({"device_bytes": 900 * MIB}, NOW, LIMITS).expert_slots == 128
    made = parse_resize({"device_bytes": 150 * MIB, "kv_tokens": 8192}, NOW, LIMITS)
    assert (made.kv_blocks, made.expert_slots) == (512, 34)
    with pytest.raises(CapacityError, match=str(111 * MIB)):
        parse_resize({"device_bytes": 110 * MIB}, NOW, LIMITS)


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        ({}, RequestError, "at least one of experts"),
        ({"slots": 4}, RequestError, "unknown field 'slots'"),
        ({"experts": "many"}, RequestError, "experts = 'many'"),
        ({"experts": True}, RequestError, "experts = True"),
        ({"experts": "0%"}, RequestError, "above 0%"),
        ({"experts": 500}, CapacityError, "experts = 500; expected 1 to 128"),
        ({"experts": "1KiB"}, CapacityError, "experts = 0; expected 1 to 128"),
        ({"experts": 100}, CapacityError, "210 MiB in all and 180 MiB"),
        ({"kv_tokens": 100}, CapacityError, "kv_tokens = 100; expected 1024 to 8192"),
        ({"kv_tokens": 9000}, CapacityError, "expected 1024 to 8192"),
        ({"kv_tokens": -1}, RequestError, "0 or more"),
        ({"kv_tokens": 1.5}, RequestError, "a whole number"),
        ({"kv_tokens": "2048"}, RequestError, "a whole number"),
        ({"state_slots": 0}, CapacityError, "state_slots = 0; expected 1 to 8"),
        ({"device_bytes": 1 << 70}, RequestError, "a whole number"),
        ({"device_bytes": 0}, CapacityError, "at least"),
    ],
)
def test_nonsense(body: dict[str, Any], error: type[HeadraceError], says: str) -> None:
    with pytest.raises(error) as raised:
        parse_resize(body, NOW, LIMITS)
    assert says in str(raised.value)


@pytest.mark.parametrize(("placement", "slots"), [("resident", 128), ("host", 0)])
def test_other_placements_keep_their_slots(placement: str, slots: int) -> None:
    now = replace(NOW, expert_slots=slots, free=400 * MIB)
    limits = limits_for(FACTS, now, NEED, context=1024, placement=placement)
    with pytest.raises(CapacityError, match=r"all experts are .* kv_tokens from 1024 to 8192"):
        parse_resize({"experts": 40}, now, limits)
    made = parse_resize({"device_bytes": 390 * MIB, "kv_tokens": 2048}, now, limits)
    assert (made.expert_slots, made.kv_blocks, made.free) == (slots, 128, 390 * MIB)
    for free in (0, 300 * MIB):
        pressed = rebalance(now, Use(128, free), limits)
        assert pressed is None or pressed.expert_slots == slots
    assert after_failure(now, limits) is None


@pytest.mark.parametrize("body", [{"experts": "25%"}, {"experts": 9}, {"device_bytes": 400 * MIB}])
def test_the_cpu_alone_resizes_only_caches(body: dict[str, Any]) -> None:
    now = replace(NOW, expert_slots=0, staging_slots=0, slot_bytes=0)
    limits = limits_for(FACTS, now, NEED, context=1024, placement="")
    with pytest.raises(CapacityError, match=r"no device.* kv_tokens from 1024 to 8192"):
        parse_resize(body, now, limits)
    assert parse_resize({"kv_tokens": 1024}, now, limits).kv_blocks == 64


def test_a_refused_allocation_shrinks_until_one_slot_is_left() -> None:
    sizes = []
    now: MemoryBudget | None = NOW
    while now is not None:
        assert now.free - now.used == NOW.free - NOW.used
        sizes.append(now.expert_slots)
        now = after_failure(now, LIMITS)
    assert sizes[:3] == [60, 52, 45]
    assert sizes[-1] == 1
    assert len(sizes) < 30


# 10 MiB of the budget are not used, 8 are the reserve: nobody holds 18.
AUTO = at_rest(LIMITS, NOW, 18 * MIB, asked=False)
ASKED = at_rest(LIMITS, NOW, 18 * MIB, asked=True)


def quiet(**over: int) -> Use:
    return Use(**({"kv_blocks": 90, "free": 18 * MIB} | over))


def test_nothing_changes_while_nothing_does() -> None:
    for blocks in (64, 90, 115):
        for free in (14, 18, 26):
            assert rebalance(NOW, Use(blocks, free * MIB), AUTO) is None


def test_memory_that_nobody_holds_is_no_change() -> None:
    # a workspace that is only counted, say
    limits = at_rest(LIMITS, NOW, 70 * MIB, asked=False)
    assert limits.offset == 52 * MIB
    assert rebalance(NOW, quiet(free=70 * MIB), limits) is None
    pressed = rebalance(NOW, quiet(free=50 * MIB), limits)
    assert pressed is not None
    assert pressed.free == 160 * MIB


def test_context_takes_from_experts_and_gives_back() -> None:
    grown = rebalance(NOW, quiet(kv_blocks=400), AUTO)
    assert grown is not None
    # 512 blocks, 384 more, 6 MiB: they were still free within the budget
    assert (grown.kv_blocks, grown.expert_slots) == (512, 60)
    tight = replace(NOW, free=171 * MIB)
    grown = rebalance(tight, quiet(kv_blocks=400, free=9 * MIB), AUTO)
    assert grown is not None
    assert (grown.kv_blocks, grown.expert_slots, grown.used) == (512, 55, 171 * MIB)
    back = rebalance(grown, quiet(kv_blocks=20, free=8 * MIB), AUTO)
    assert back is not None
    assert (back.kv_blocks, back.expert_slots) == (64, 62)
    assert back.used == 171 * MIB
    asked = rebalance(grown, quiet(kv_blocks=20, free=8 * MIB), ASKED)
    assert asked is not None
    assert asked.expert_slots == 60


def test_other_programs_take_and_give_back() -> None:
    # 17 MiB are taken: 10 were not used, so 7 slots go
    pressed = rebalance(NOW, quiet(free=MIB), AUTO)
    assert pressed is not None
    assert (pressed.expert_slots, pressed.kv_blocks, pressed.free) == (53, 128, 163 * MIB)
    assert rebalance(pressed, quiet(free=8 * MIB), AUTO) is None
    back = rebalance(pressed, quiet(free=25 * MIB), ASKED)
    assert back is not None
    assert (back.expert_slots, back.free) == (60, 180 * MIB)
    more = rebalance(pressed, quiet(free=45 * MIB), AUTO)
    assert more is not None
    assert more.expert_slots == 53 + 37
    assert rebalance(NOW, quiet(free=90 * MIB), ASKED) is None
    worst = rebalance(NOW, Use(70, -500 * MIB), AUTO)
    assert worst is not None
    assert (worst.expert_slots, worst.kv_blocks) == (4, 70)


def test_a_resize_that_was_asked_for_stays() -> None:
    small = parse_resize({"device_bytes": 150 * MIB}, NOW, LIMITS)
    assert small.expert_slots == 40
    # the 20 slots lie free now, and the 10 MiB that were never used
    limits = at_rest(LIMITS, small, 38 * MIB, asked=True)
    assert rebalance(small, quiet(free=38 * MIB), limits) is None
    assert rebalance(small, quiet(free=200 * MIB), limits) is None


@given(
    slots=st.integers(4, 128),
    blocks=st.integers(64, 512),
    spare=st.integers(0, 20 * MIB),
    in_use=st.integers(0, 512),
    change=st.integers(-90 * MIB, 90 * MIB),
    offset=st.integers(-4 * MIB, 90 * MIB),
    asked=st.booleans(),
)
def test_it_comes_to_rest_and_nothing_is_overdrawn(
    slots: int, blocks: int, spare: int, in_use: int, change: int, offset: int, *, asked: bool
) -> None:
    now = replace(NOW, expert_slots=slots, kv_blocks=blocks, kv_bytes=blocks * BLOCK)
    now = replace(now, free=now.used + spare)
    start, in_use = now, min(in_use, blocks)
    free = now.free - now.used + now.reserve + offset
    limits = at_rest(LIMITS, now, free, asked=asked)
    free += change
    for _ in range(4):
        made = rebalance(now, Use(in_use, free), limits)
        if made is None:
            break
        assert made.used <= made.free
        assert 4 <= made.expert_slots <= (start.expert_slots if asked else 128)
        assert LIMITS.kv_blocks.least <= made.kv_blocks <= LIMITS.kv_blocks.most
        assert made.kv_blocks >= in_use
        # What we gave up is free for others now, what we took is not.
        free += now.used - made.used
        now = made
    last = rebalance(now, Use(in_use, free), limits)
    # Where nothing is left to give, only the shortage is left to be told.
    assert last is None or last.expert_slots == now.expert_slots == 4
