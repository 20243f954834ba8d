"""Fill rules against exhaustive search, and the partition that every plan must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.device.clock import VirtualClock
from headrace.planning.facts import ExpertKey
from headrace.planning.lru import Lru, SlotTable
from headrace.planning.machines import MACHINES
from headrace.planning.profile import ProfileRow
from headrace.planning.split import (
    Returns,
    auto_rule,
    balanced,
    branch_times,
    fill_all,
    fill_none,
    fraction,
    from_table,
    guarded,
    investing,
    paper,
    plan_misses,
    tabulate,
)

S = 6 << 20
RATES = st.floats(1e8, 1e12)
COSTS = st.floats(0, 1e-3)


@st.composite
def rows(draw: st.DrawFn) -> ProfileRow:
    link, host = draw(RATES), draw(RATES)
    kept = st.floats(0.1, 1.0)
    return ProfileRow(link, host, link * draw(kept), host * draw(kept), draw(COSTS), draw(COSTS))


def by_the_clock(row: ProfileRow, misses: int, fills: int) -> float:
    """The time of a split, by the clock that runs link and host side by side."""
    clock = VirtualClock(row, kernels=1.0, flops=1.0)
    clock.transfer(fills * S)
    clock.host_work((misses - fills) * S)
    clock.wait_link()
    clock.wait_host()
    return clock.now


@given(rows(), st.integers(0, 64))
def test_balanced_is_the_best_of_all_splits(row: ProfileRow, misses: int) -> None:
    q = balanced(row, S)(misses)
    times = [by_the_clock(row, misses, fills) for fills in range(misses + 1)]
    assert times[q] == pytest.approx(min(times))
    assert branch_times(row, S, misses, q).step_s == pytest.approx(times[q])


@given(rows(), st.integers(0, 64))
def test_guarded_never_loses_to_a_pure_rule(row: ProfileRow, misses: int) -> None:
    def step_s(q: int) -> float:
        return branch_times(row, S, misses, q).step_s

    q = guarded(row, S)(misses)
    none_s, all_s = step_s(0), step_s(misses)
    assert step_s(q) <= min(none_s, all_s)
    assert q == misses or none_s < all_s or step_s(q) < 0.97 * all_s


@given(rows(), st.integers(0, 64), st.floats(0, 4))
def test_every_rule_stays_within_the_misses(row: ProfileRow, misses: int, returns: float) -> None:
    for rule in (
        fill_all,
        fill_none,
        paper(row),
        balanced(row, S),
        guarded(row, S),
        investing(row, S, returns),
        auto_rule(row, S, returns),
        fraction(min(returns, 1.0)),
    ):
        assert 0 <= rule(misses) <= misses
        assert from_table(tabulate(rule, 64))(misses) == rule(misses)
    assert investing(row, S, 0.0)(misses) == balanced(row, S)(misses)
    assert investing(row, S, returns)(misses) >= balanced(row, S)(misses)


@given(rows(), st.integers(0, 64), st.floats(0, 16))
def test_auto_is_never_predicted_slower_than_a_pure_rule(
    row: ProfileRow, misses: int, returns: float
) -> None:
    """With returns credited; without them in the step itself."""
    best_s = min(branch_times(row, S, 64, q).step_s for q in range(65)) / 64

    def cost(q: int) -> float:
        return branch_times(row, S, misses, q).step_s - q * returns * best_s

    q = auto_rule(row, S, returns)(misses)
    pure = min(cost(0), cost(misses))
    assert cost(q) <= pure + 1e-9 * abs(pure)
    assert auto_rule(row, S, 0.0)(misses) == balanced(row, S)(misses)


def fed(slots: int, *counts: tuple[int, int, int], times: int = 4000) -> list[float]:
    """Values while (hits, fills, host) repeat."""
    returns = Returns(ProfileRow(5e9, 2e10, 5e9, 1.5e10), S, slots)
    values = [returns.value]
    for i in range(times):
        hits, fills, host = counts[i % len(counts)]
        returns.observe(hits + fills + host, hits, fills, host)
        values.append(returns.value)
    return values


def test_returns_start_with_hope_and_follow_the_cache() -> None:
    assert fed(100, (6, 1, 1), times=0) == [16.0]
    assert fed(100, (6, 1, 1))[-1] == pytest.approx(0.5 * 6**0.5, rel=0.01)
    assert fed(100, (8, 1, 0), (8, 0, 0))[-1] == pytest.approx(2.0, rel=0.02)
    assert fed(100, (8, 0, 0))[-1] == 16.0  # nothing was filled: nothing is known


def test_no_burst_moves_returns_far() -> None:
    values = fed(100, (6, 1, 1))
    returns = Returns(ProfileRow(5e9, 2e10, 5e9, 1.5e10), S, 100)
    for _ in range(4000):
        returns.observe(8, 6, 1, 1)
    returns.observe(8, 0, 8, 0)
    assert returns.value > 0.9 * values[-1]


def test_hope_that_costs_more_than_it_may_ends() -> None:
    """Eight fills a layer and no hit: the host alone is much faster."""
    row = ProfileRow(5e9, 2e10, 5e9, 1.5e10)
    returns = Returns(row, S, 100)
    spent = alone = 0.0
    for _ in range(5000):
        fills = auto_rule(row, S, returns.value)(8)
        returns.observe(8, 0, fills, 8 - fills)
        spent += branch_times(row, S, 8, fills).step_s
        alone += branch_times(row, S, 8, 0).step_s
    assert spent <= 1.02 * alone + 50 * S / row.link + 8 * S / row.link
    returns = Returns(row, S, 100)
    for _ in range(5000):
        returns.observe(8, 0, 8, 0)
    assert returns.value == 0.0


@pytest.mark.parametrize(
    ("machine", "share"),
    [  # arXiv 2608.16157, table 1 and equation 3
        ("rtx4060-laptop", 0.25),
        ("rtx3090-server", 0.45),
        ("rtx4090-server", 0.40),
        ("rtx5090-server", 0.68),
        ("rtx5090-desktop", 0.91),
        ("rtxpro6000-workstation", 0.29),
    ],
)
def test_paper_shares(machine: str, share: float) -> None:
    rule = paper(MACHINES[machine].row)
    assert rule(1000) / 1000 == pytest.approx(share, abs=0.006)
    assert [rule(0), rule(1)] == [0, 1]
    if machine == "rtx4060-laptop":
        assert rule(4) == 1  # the example of figure 2


def test_a_table_goes_on_with_its_last_share() -> None:
    rule = from_table((0, 1, 1, 2, 2))
    assert [rule(m) for m in (3, 4, 8, 40)] == [2, 2, 4, 20]


def test_a_rule_that_fills_too_much_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        tabulate(lambda misses: misses + 1, 3)


def test_misses_likely_to_return_are_filled() -> None:
    """Expert 3 was used last, 1 before it, 0 and 2 never; experts 4 and 5 hold the slots."""
    slots = SlotTable((6,), 2, Lru())
    for e in (1, 3, 4, 5):
        plan_misses([ExpertKey(0, e)], slots, fill_all)
    active = [ExpertKey(0, e) for e in (0, 1, 2, 3)]
    plan = plan_misses(active, slots, lambda _: 2)
    assert [fill.key.expert for fill in plan.fills] == [3, 1]
    assert [key.expert for key in plan.host] == [0, 2]


def test_too_few_slots_leave_misses_to_the_host() -> None:
    slots = SlotTable((6,), 2, Lru())
    active = [ExpertKey(0, e) for e in range(5)]
    plan = plan_misses(active, slots, fill_all)
    assert (len(plan.fills), len(plan.host)) == (2, 3)
    plan = plan_misses(active, slots, fill_all)  # both residents are in use: none may go
    assert (len(plan.hits), len(plan.fills), len(plan.host)) == (2, 0, 3)
