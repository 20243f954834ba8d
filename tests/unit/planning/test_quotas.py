"""Quick tables are those of the rules, number for number in what they cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.profile import ProfileRow
from headrace.planning.quotas import quota_table, rule_named
from headrace.planning.split import RETURNS, branch_times, tabulate

rates = st.floats(1e8, 1e12)
fixed = st.floats(0, 1e-4)


@given(
    link=rates,
    host=rates,
    link_part=st.floats(0.05, 1),
    host_part=st.floats(0.01, 1),
    fill_s=fixed,
    handoff_s=fixed,
    row_bytes=st.integers(1000, 50_000_000),
    fill=st.sampled_from(["auto", "balanced", "paper", "all", "none", 0.3]),
)
def test_quick_tables_cost_what_the_rules_cost(
    link: float,
    host: float,
    link_part: float,
    host_part: float,
    fill_s: float,
    handoff_s: float,
    row_bytes: int,
    fill: str | float,
) -> None:
    row = ProfileRow(link, host, link * link_part, host * host_part, fill_s, handoff_s)
    slow = tabulate(rule_named(fill, row, row_bytes), 24)
    quick = quota_table(fill, row, row_bytes, 24)
    credit = RETURNS * row_bytes / row.host if fill == "auto" else 0.0

    def cost(misses: int, q: int) -> float:
        return branch_times(row, row_bytes, misses, q).step_s - q * credit

    for misses, (a, b) in enumerate(zip(slow, quick, strict=True)):
        # Where two splits cost the same to the last bits, either will do.
        assert a == b or cost(misses, a) == pytest.approx(cost(misses, b), rel=1e-9)


def test_equal_numbers_where_nothing_is_tied() -> None:
    row = ProfileRow(20e9, 50e9, 18e9, 42e9, 3e-6, 8e-6)
    for fill in ("auto", "balanced"):
        assert quota_table(fill, row, 4 << 20, 200) == tabulate(rule_named(fill, row, 4 << 20), 200)
