"""Dividing bytes, against trying every division; and what the curves say."""

from __future__ import annotations

from itertools import accumulate, pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.curves import REUSE, Curve, concave, miss_curve
from headrace.planning.divide import Claim, divide


def claim(unit: int, least: int, gains: list[float]) -> Claim:
    """Saves gains[i] more with the i-th unit beyond the least."""
    totals = [0.0, *accumulate(gains)]
    return Claim(unit, least, least + len(gains), lambda units: totals[units - least])


def best(total: int, claims: list[Claim]) -> float:
    """By trying every division."""
    ranges = [range(claim.least, claim.most + 1) for claim in claims]
    return max(
        sum(claim.saved(n) for claim, n in zip(claims, units, strict=True))
        for units in product(*ranges)
        if sum(n * claim.unit_bytes for claim, n in zip(claims, units, strict=True)) <= total
    )


falling = st.lists(st.integers(0, 50), max_size=7).map(lambda g: sorted(map(float, g))[::-1])


@st.composite
def claims_of(draw: Any, units: st.SearchStrategy[int]) -> tuple[int, list[Claim]]:
    made = [
        claim(draw(units), draw(st.integers(0, 3)), draw(falling))
        for _ in range(draw(st.integers(1, 3)))
    ]
    least = sum(one.least * one.unit_bytes for one in made)
    return least + draw(st.integers(0, 60)), made


@given(claims_of(st.just(4)))
def test_equal_units_are_divided_as_well_as_can_be(case: tuple[int, list[Claim]]) -> None:
    total, made = case
    units = divide(total, made)
    assert sum(n * one.unit_bytes for one, n in zip(made, units, strict=True)) <= total
    saved = sum(one.saved(n) for one, n in zip(made, units, strict=True))
    assert saved == pytest.approx(best(total, made))


@given(claims_of(st.integers(1, 9)))
def test_unequal_units_lose_less_than_one_unit(case: tuple[int, list[Claim]]) -> None:
    total, made = case
    units = divide(total, made)
    assert all(one.least <= n <= one.most for one, n in zip(made, units, strict=True))
    assert sum(n * one.unit_bytes for one, n in zip(made, units, strict=True)) <= total
    saved = sum(one.saved(n) for one, n in zip(made, units, strict=True))
    largest = max(
        (one.saved(n + 1) - one.saved(n) for one in made for n in range(one.least, one.most)),
        default=0.0,
    )
    assert saved >= best(total, made) - len(made) * largest


def test_the_margins_are_equal() -> None:
    # saved = 40 sqrt(a) + 20 sqrt(b): equal margins at a = 4 b
    made = [
        Claim(10, 0, 1000, lambda n: 40 * n**0.5),
        Claim(10, 0, 1000, lambda n: 20 * n**0.5),
    ]
    a, b = divide(5000, made)
    assert a + b == 500
    assert a == pytest.approx(400, abs=4)


def test_nothing_is_given_where_nothing_is_saved() -> None:
    assert divide(100, [claim(1, 2, [0.0] * 9), claim(1, 1, [5.0, 0.0])]) == [2, 2]


def test_a_curve_with_a_late_step_is_bridged() -> None:
    # nothing until the eighth unit: as a whole it is worth more than the other's tail
    late = claim(1, 0, [0.0] * 7 + [80.0])
    assert divide(8, [late, claim(1, 0, [9.0, 8.0, 7.0, 6.0])]) == [8, 0]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-20, 20)), min_size=1, max_size=12))
def test_the_envelope_is_the_least_concave_curve_above(points: list[tuple[int, int]]) -> None:
    ordered = sorted(dict(points).items())
    hull = concave([(x, float(y)) for x, y in ordered])
    slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(hull)]
    assert all(a > b for a, b in pairwise(slopes))
    assert (hull[0][0], hull[-1][0]) == (ordered[0][0], ordered[-1][0])
    line = Curve(tuple((float(x), y) for x, y in hull))
    assert all(line.at(x) >= y - 1e-9 for x, y in ordered)
    assert all(point in ordered for point in hull)


def test_misses_by_shape() -> None:
    sparse, dense = miss_curve(8 / 256), miss_curve(2 / 8)
    assert (sparse.at(0), sparse.at(0.05), sparse.at(0.08)) == (1, 0.465, pytest.approx(0.3705))
    assert dense.at(0.2) == pytest.approx(0.453)
    assert (dense.at(1), dense.at(7)) == (0, 0)
    # gpt-oss-20b, 32 experts, top-4: 74 % and 50 % in docs/simulator.md
    between = miss_curve(4 / 32)
    assert between.at(0.05) == pytest.approx(0.74, abs=0.03)
    assert between.at(0.11) == pytest.approx(0.50, abs=0.05)
    assert miss_curve(1 / 512) == sparse
    assert miss_curve(0.9) == dense
    rates = [between.at(i / 100) for i in range(101)]
    assert rates == sorted(rates, reverse=True)


def test_prompts_found_again() -> None:
    assert [REUSE.at(x) for x in (-1, 0, 0.5, 4, 99)] == [0, 0, 0.25, 0.9, 1]
