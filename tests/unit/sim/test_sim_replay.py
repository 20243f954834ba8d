"""Belady against exhaustive search, replays against models written anew, the synthetic routing."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.planning.lru import Lru
from headrace.planning.machines import MACHINES
from headrace.planning.policies import DEFAULT_POLICY, POLICIES
from headrace.planning.profile import ProfileRow
from headrace.planning.split import FillRule, fill_all, fill_none, fraction
from headrace.planning.trace import NONE, RoutingTrace, TraceModel
from headrace.sim.belady import belady_misses
from headrace.sim.calibration import PUBLISHED, synthetic_rates
from headrace.sim.replay import (
    BELADY,
    bound,
    compare,
    predict,
    prepare,
    profile_of,
    replay,
    slots_for,
)
from headrace.sim.report import way_to_bound
from headrace.sim.synthetic import MEASURED, SHAPES, generate, shape

SMALL = TraceModel("small", (32,) * 6, (4,) * 6, (1 << 20,) * 6)


def fewest(uses: tuple[int, ...], capacity: int, *, bypass: bool) -> int:
    """Every choice tried."""

    @cache
    def best(at: int, held: frozenset[int]) -> int:
        if at == len(uses):
            return 0
        row = uses[at]
        if row in held:
            return best(at + 1, held)
        ways = []
        if bypass:
            ways.append(best(at + 1, held))
        if len(held) < capacity:
            ways.append(best(at + 1, held | {row}))
        else:
            ways += [best(at + 1, (held - {out}) | {row}) for out in held]
        return 1 + min(ways)

    return best(0, frozenset())


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4), st.booleans())
def test_belady_is_the_best_of_all(uses: list[int], capacity: int, bypass: bool) -> None:
    assert belady_misses(uses, capacity, bypass=bypass) == fewest(
        tuple(uses), capacity, bypass=bypass
    )


def small_trace(seed: int = 0) -> RoutingTrace:
    return generate(SMALL, sequences=2, prompt=8, decode=24, seed=seed)


def test_replay_of_lru_counts_as_a_list_does() -> None:
    trace = small_trace()
    for share in (0.05, 0.2, 0.5, 1.0):
        held: list[tuple[int, int]] = []  # least recent first; within one layer by number
        misses = uses = 0
        room = slots_for(SMALL, share)
        for ids, prefill in trace.steps():
            if prefill.all():
                continue
            for layer in range(6):
                active = [(layer, int(e)) for e in ids[0, layer]]
                hits = [key for key in active if key in held]
                late = [key for key in active if key not in held]
                held = [key for key in held if key not in hits]
                del held[: max(0, len(held) + len(active) - room)]
                held += sorted(active)
                misses += len(late)
                uses += len(active)
        outcome = replay(SMALL, prepare(trace), Lru(), share)
        assert (outcome.misses, outcome.fills, outcome.uses) == (misses, misses, uses)
        assert outcome.steps == 48


def test_no_policy_that_starts_empty_beats_the_bound() -> None:
    steps = prepare(small_trace())
    shares = (0.05, 0.2, 0.5, 1.0)
    outcomes = compare(SMALL, steps, shares)
    best = {o.share: o.misses for o in outcomes if o.policy == BELADY}
    assert len(outcomes) == len(shares) * (len(POLICIES) + 1)
    for outcome in outcomes:
        assert outcome.uses == 48 * 6 * 4
        if outcome.policy in ("lru", "lfu-aged", DEFAULT_POLICY):  # those that start empty
            assert outcome.misses >= best[outcome.share]
    full = [o.misses for o in outcomes if o.share == 1.0 and o.policy.startswith("static")]
    assert full == [0, 0]


def test_a_batch_uses_an_expert_once() -> None:
    """Two sequences decode in one step; prompts in the same step are no decode uses."""
    model = TraceModel("m", (8,), (2,), (1,))
    ids = np.array([[[0, 1]], [[1, 2]], [[5, 6]], [[6, 7]]], np.uint16)
    trace = RoutingTrace(model, np.array([4], np.uint32), np.array([0, 0, 1, 1], np.bool_), ids)
    (step,) = prepare(trace)
    assert [key.expert for key in step.active[0]] == [0, 1, 2]
    assert {key.expert: n for key, n in step.prefill.items()} == {5: 1, 6: 2, 7: 1}
    assert step.prompt_tokens == 2
    assert profile_of(model, [step]) == {0: 1, 1: 1, 2: 1}


def test_layers_of_different_shape() -> None:
    model = TraceModel("m", (0, 6, 9), (0, 2, 3), (0, 10, 20))
    rng = np.random.default_rng(1)
    ids = np.full((40, 2, 3), NONE, np.uint16)
    for t in range(40):
        ids[t, 0, :2], ids[t, 1] = rng.permutation(6)[:2], rng.permutation(9)[:3]
    trace = RoutingTrace(model, np.ones(40, np.uint32), np.zeros(40, np.bool_), ids)
    outcomes = compare(model, prepare(trace), (0.3, 1.0))
    assert {o.uses for o in outcomes} == {40 * 5}
    assert {o.slots for o in outcomes} == {4, 15}


def test_a_trace_without_decoding_is_refused() -> None:
    trace = small_trace()
    prompts = RoutingTrace(SMALL, trace.lengths, np.ones_like(trace.prefill), trace.ids)
    with pytest.raises(ConfigError, match="no decode steps"):
        prepare(prompts)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_nonsense_capacities_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        replay(SMALL, prepare(small_trace()), Lru(), share)


def test_an_unknown_policy_names_the_known() -> None:
    with pytest.raises(ConfigError, match="recency-frequency"):
        compare(SMALL, prepare(small_trace()), (0.1,), ["magic"])


def test_host_only_time_is_bytes_over_bandwidth() -> None:
    row = MACHINES["rtx4090-server"].row
    outcome = replay(SMALL, prepare(small_trace()), Lru(), 0.2, fill_none, row)
    assert outcome.fills == 0
    assert outcome.miss_s == pytest.approx(48 * 6 * 4 * (1 << 20) / 63.2e9)


def test_investing_is_no_slower_than_a_pure_rule() -> None:
    trace = generate(SMALL, sequences=2, prompt=8, decode=64)
    make = POLICIES[DEFAULT_POLICY]
    for machine in ("rtx4060-laptop", "rtx5090-server", "rtx5090-desktop"):
        times = predict(
            SMALL, prepare(trace), lambda: make(SMALL.experts, {}), MACHINES[machine].row, 0.37
        )
        pure = min(times["fill-all"].step_s, times["host-only"].step_s)
        assert times["investing"].step_s <= 1.03 * pure


def machines(link: float) -> list[ProfileRow]:
    """Bandwidths that subtract, that do not, and in between."""
    host = 6e10
    link *= host
    return [
        ProfileRow.subtracting(link, host),
        ProfileRow(link, host, link, host),
        ProfileRow(link, host, 0.8 * link, max(host - 0.6 * link, 0.1 * host)),
    ]


@pytest.mark.parametrize(
    "links", [(0.25, 1.0), pytest.param((0.1, 0.15, 0.5, 0.75), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_auto_cannot_lose(links: tuple[float, ...], share: float) -> None:
    """Over a whole replay from a cold cache: at most 3% above the better pure rule."""
    steps = prepare(generate(SMALL, sequences=2, prompt=8, decode=64))

    def run(row: ProfileRow, rule: FillRule, *, learns: bool = False) -> float:
        policy = POLICIES[DEFAULT_POLICY](SMALL.experts, {})
        return replay(SMALL, steps, policy, share, rule, row, learns=learns).miss_s

    for link in links:
        for row in machines(link):
            pure = min(run(row, fill_all), run(row, fill_none))
            assert run(row, fill_none, learns=True) <= 1.03 * pure, (link, row)


def test_the_same_seed_gives_the_same_routing() -> None:
    a, b, c = small_trace(7), small_trace(7), small_trace(8)
    assert np.array_equal(a.ids, b.ids)
    assert not np.array_equal(a.ids, c.ids)
    assert a.ids.shape == (2 * 32, 6, 4)
    assert a.lengths.tolist() == ([8] + [1] * 24) * 2
    assert int(a.prefill.sum()) == 16
    assert (np.sort(a.ids, axis=2)[:, :, 1:] != np.sort(a.ids, axis=2)[:, :, :-1]).all()
    assert a.ids.max() < 32


def test_synthetic_routing_is_local_and_skewed() -> None:
    """Neighbouring tokens share more than chance, the same topic more than another one."""
    ids = generate(SMALL, sequences=2, prompt=0, decode=64).ids.astype(int)

    def shared(a: np.ndarray, b: np.ndarray) -> float:
        return float((a[:, :, :, None] == b[:, :, None, :]).any(3).mean())

    near, far, other = (
        shared(ids[:63], ids[1:64]),
        shared(ids[:32], ids[32:64]),
        shared(ids[:64], ids[64:]),
    )
    assert near > far > other > 4 / 32


def test_calibration_to_published_hit_rates() -> None:
    """A part of the layers and prompts; docs/simulator.md has the whole."""
    for rates, published in zip(
        synthetic_rates(MEASURED, layers=4, prompts=8), PUBLISHED, strict=True
    ):
        assert rates.slots == published.slots
        assert rates.lru == pytest.approx(published.lru, abs=2.0)
        assert rates.belady == pytest.approx(published.belady, abs=2.0)


def test_the_default_policy_is_a_third_of_the_way_at_small_capacities() -> None:
    """Layers as wide as the model's; at 5% each has 13 slots and uses 8 a step."""
    whole = shape("qwen3.6")
    model = TraceModel("qwen3.6", whole.experts[:6], whole.top_k[:6], whole.row_bytes[:6])
    steps = prepare(generate(model, sequences=2))
    outcomes = compare(model, steps, (0.03, 0.05), [DEFAULT_POLICY, "lru"])
    assert way_to_bound(outcomes, DEFAULT_POLICY, 0.03) > 1 / 3
    assert way_to_bound(outcomes, DEFAULT_POLICY, 0.05) > 0.28


def test_a_share_of_fills_lies_between_all_and_none() -> None:
    steps = prepare(small_trace())
    half = replay(SMALL, steps, Lru(), 0.2, fraction(0.5))
    everything = replay(SMALL, steps, Lru(), 0.2)
    assert 0 < half.fills < half.misses
    assert half.misses >= bound(SMALL, steps, 0.2).misses
    assert everything.fills == everything.misses


def test_unknown_shapes_and_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"qwen3\.6"):
        shape("nothing")
    with pytest.raises(ConfigError, match="sequences"):
        generate(SMALL, sequences=0)
    with pytest.raises(ConfigError, match="expert counts"):
        generate(TraceModel("m", (4, 8), (2, 2), (1, 1)))
    for model in SHAPES.values():
        assert len(set(model.experts)) == 1


def test_replays_do_not_depend_on_hash_order() -> None:
    trace = small_trace()
    random.seed(1)
    a = replay(SMALL, prepare(trace), POLICIES[DEFAULT_POLICY](SMALL.experts, {}), 0.2)
    b = replay(SMALL, prepare(trace), POLICIES[DEFAULT_POLICY](SMALL.experts, {}), 0.2)
    assert a == b
