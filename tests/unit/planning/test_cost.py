"""Predicted times against sums done by hand, and what must rise or fall with what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.cost import Costs, Seating, Speeds, distinct
from headrace.planning.curves import Curve
from headrace.planning.facts import KvNeed, ModelFacts
from headrace.planning.profile import ProfileRow, layer_kinds
from headrace.planning.split import fill_none, investing, tabulate

# One layer of 1000 bytes dense in all, one of four experts of 100 bytes, two of them a token.
FACTS = ModelFacts(
    family="test",
    layers=2,
    hidden=10,
    vocab=50,
    max_context=1000,
    state=(KvNeed(5, 5), KvNeed(5, 5, 8)),
    experts=(0, 4),
    top_k=(0, 2),
    expert_bytes=(0, 100),
    total_bytes=1400,
    dtype="bfloat16",
)
SPEEDS = Speeds(kernels=1000.0, flops=1e4, host_flops=1e9)
KIND = next(iter(layer_kinds(FACTS)))
ROW = ProfileRow(100.0, 50.0, 100.0, 50.0)
ALONE = Costs(FACTS, SPEEDS, element_bytes=2)
HALF = Curve(((0.0, 0.5),))


def hybrid(table: tuple[int, ...] = (0, 1, 1), slots: int = 2, **over: Any) -> Costs:
    seating = Seating("hybrid", slots, over.pop("staging", 8), {KIND: ROW}, {KIND: table})
    return Costs(FACTS, SPEEDS, 2, seating, over.pop("misses", HALF))


def test_a_step_where_the_weights_lie() -> None:
    step = ALONE.decode(20)
    assert step.dense_s == pytest.approx(1.0)
    # 20 tokens of 10 values and, within a window, 8 of 10; two bytes each
    assert step.attention_s == pytest.approx(0.56)
    assert step.experts_s == pytest.approx(0.2)
    assert step.misses_s == 0
    assert ALONE.tokens_per_s(20) == pytest.approx(1 / 1.76)


def test_heads_that_share_a_key_work_with_it_each() -> None:
    latent = replace(FACTS, state=(KvNeed(5, 0, latent=4, work=700), KvNeed(5, 5)))
    costs = Costs(latent, SPEEDS, element_bytes=2)
    assert latent.kv_bytes_per_token(2) == 30
    assert costs.decode(20).attention_s == pytest.approx(20 * 700 / 1e4)  # reading takes 0.6 s
    many = replace(latent, state=(KvNeed(5, 0, latent=4, work=7), KvNeed(5, 5)))
    assert Costs(many, SPEEDS, element_bytes=2).decode(20).attention_s == pytest.approx(0.6)
    # In a prompt, for each token and half of the others before it; four a hidden value elsewhere.
    prompt = costs.prefill(10, 0, "on demand") - replace(costs, facts=many).prefill(
        10, 0, "on demand"
    )
    assert prompt == pytest.approx(10 * 5 * (700 - 7) / 1e4)


def test_a_prompt_counts_weights_not_their_bytes() -> None:
    quarter = replace(FACTS, dtype="q4_0", dense_weights=2000, expert_weights=(0, 200))
    alone = Costs(quarter, Speeds(kernels=1e9, flops=1e4, host_flops=1e9), element_bytes=2)
    attention = 4 * 10 * (5 + 5) * 10
    work = 2 * 10 * 2000 + attention + 2 * 10 * 2 * 200
    assert alone.prefill(10, 0, "on demand") == pytest.approx(work / 1e4)
    assert quarter.active_weights == 2400
    assert FACTS.active_weights == 600  # two bytes each, where nothing else is known


def test_a_batch_shares_experts() -> None:
    assert distinct(4, 2, 2) == pytest.approx(3)
    step = ALONE.decode(20, batch=2)
    assert step.experts_s == pytest.approx(0.3)
    assert step.attention_s == pytest.approx(1.12)
    assert ALONE.tokens_per_s(20, 2) == pytest.approx(2 / (1.0 + 0.3 + 1.12))


def test_misses_fall_by_chance() -> None:
    # no miss 0.2 s; one, filled: 1.0 + 0.2; two, one filled: max(1.0 + 0.1, 100 / 50)
    step = hybrid().decode(20)
    assert step.experts_s == pytest.approx(0.2)
    assert step.experts_s + step.misses_s == pytest.approx(0.2 / 4 + 1.2 / 2 + 2.0 / 4)


def test_an_empty_cache_always_misses() -> None:
    cold = hybrid(tabulate(fill_none, 4))
    assert cold.miss_rate == 1.0
    assert cold.decode(20).experts_s + cold.decode(20).misses_s == pytest.approx(200 / 50)
    host = replace(cold, seating=Seating("host", 0, 0, {KIND: ROW}, {KIND: (0, 0)}))
    assert host.decode(20).total_s == pytest.approx(cold.decode(20).total_s)
    resident = replace(cold, seating=Seating("resident", 4, 0, {KIND: ROW}, {KIND: (0, 0)}))
    assert resident.decode(20) == ALONE.decode(20)


def test_a_chunk_by_hand() -> None:
    # dense 1000 bytes in 1 s, its operations in less; 3.75 experts in 0.375 s
    assert ALONE.prefill(4, 0, "stream") == pytest.approx(1.375)
    # 2 of 4 rows are copied before the only layer that needs them
    assert hybrid().prefill(4, 0, "stream") == pytest.approx(2.0 + 1.375)
    # of 1.875 expected misses half go over the link; the host takes 93.75 / 50
    assert hybrid().prefill(4, 0, "on demand") == pytest.approx(1.0 + 1.875)
    assert hybrid().choose_prefill(4) == "on demand"


def test_operations_bound_a_long_chunk() -> None:
    # 2 operations a weight and token, 4 a pair and hidden value: start 100, window 8
    work = 2 * 1000 * 500 + 4 * 1000 * (600 + 8) * 10
    experts = 2 * 1000 * 2 * 50
    expected = (work + experts) / 1e4
    assert ALONE.prefill(1000, 100, "on demand") == pytest.approx(expected)


def test_the_next_layer_is_copied_while_one_computes() -> None:
    costs = replace(hybrid(), facts=deep(4), speeds=Speeds(1e9, 1e9, 1e9))
    # rows: 2 of 12 are resident, so 10/3 of a layer are copied in 3.33 s each; computing is free
    assert costs.prefill(4, 0, "stream") == pytest.approx(10.0, rel=1e-3)
    slow = replace(costs, speeds=Speeds(1e9, 100.0, 1e9))
    layers = [slow._compute(layer, 4) for layer in (1, 2, 3)]
    base = slow._dense_prefill(4, 0)
    assert min(layers) + base / 4 > 10 / 3
    assert slow.prefill(4, 0, "stream") == pytest.approx(10 / 3 + base + sum(layers))


def test_staging_that_holds_no_two_layers_never_streams() -> None:
    assert hybrid(staging=7).choose_prefill(1000) == "on demand"
    assert hybrid(staging=7).stream_from(1000) is None
    assert ALONE.stream_from(1000) is None


def deep(wide: int) -> ModelFacts:
    """A dense layer and three of `wide` experts."""
    return replace(
        FACTS,
        layers=4,
        state=FACTS.state * 2,
        experts=(0, wide, wide, wide),
        top_k=(0, 2, 2, 2),
        expert_bytes=(0, 100, 100, 100),
        total_bytes=1000 + 300 * wide,
    )


WEAK_HOST = Speeds(kernels=1e5, flops=1e7, host_flops=1e3)


@pytest.mark.parametrize("wide", [4, 16, 60, 512])
def test_where_streaming_begins(wide: int) -> None:
    costs = replace(hybrid((0, 1), 1, staging=2 * wide), facts=deep(wide), speeds=WEAK_HOST)
    start = costs.stream_from(3000)
    assert start is not None
    chosen = [costs.choose_prefill(tokens) for tokens in range(1, 3001)]
    assert chosen == ["on demand"] * (start - 1) + ["stream"] * (3001 - start)


def test_a_few_tokens_never_stream_a_wide_layer() -> None:
    costs = replace(hybrid((0, 1), staging=1024), facts=deep(512), speeds=WEAK_HOST)
    assert costs.choose_prefill(5) == "on demand"
    # 10 rows a layer over the link against 511
    assert costs.prefill(5, 0, "on demand") < costs.prefill(5, 0, "stream") / 20
    assert costs.choose_prefill(4096) == "stream"


def test_a_fast_host_may_win_long_chunks_back() -> None:
    facts = replace(FACTS, experts=(0, 64), total_bytes=1000 + 6400)
    costs = replace(hybrid((0, 1, 1), staging=128), facts=facts)
    assert costs.choose_prefill(100_000) == "on demand"


def test_the_first_token_waits_for_every_chunk() -> None:
    costs = hybrid()
    parts = [(0, 4), (4, 4), (8, 3)]
    expected = sum(costs.prefill(n, at, costs.choose_prefill(n)) for at, n in parts)
    assert costs.first_token(11, 4) == pytest.approx(expected)
    assert costs.first_token(3, 4) == pytest.approx(costs.prefill(3, 0, costs.choose_prefill(3)))


@given(
    slots=st.integers(1, 3),
    context=st.integers(1, 900),
    link=st.floats(1, 1e4),
    host=st.floats(1, 1e4),
)
def test_more_slots_and_less_context_are_never_slower(
    slots: int, context: int, link: float, host: float
) -> None:
    row = ProfileRow.subtracting(link, host)
    table = tabulate(investing(row, 100), 4)
    costs = Costs(FACTS, SPEEDS, 2, Seating("hybrid", slots, 8, {KIND: row}, {KIND: table}))
    more = replace(costs, seating=replace(costs.seating, slots=slots + 1))
    assert costs.decode(context).attention_s <= costs.decode(context + 1).attention_s
    if any(table):
        assert more.miss_rate <= costs.miss_rate
    assert costs.prefill(8, 0, "stream") >= more.prefill(8, 0, "stream") - 1e-9
    assert costs.prefill(8, 0, "stream") <= costs.prefill(9, 0, "stream")
