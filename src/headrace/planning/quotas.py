"""Tables of q[m] by rule, quickly enough to be made between two steps.

A rule of `split.py` is the meaning; here the same numbers are found by looking at a few splits of m
misses instead of all of them, because its time is piecewise linear in its fills.
"""

from __future__ import annotations

from math import floor

from headrace.planning.profile import ProfileRow, side_by_side
from headrace.planning.split import (
    CREDITED,
    GUARD,
    RETURNS,
    FillRule,
    auto_rule,
    branch_times,
    fill_all,
    fill_none,
    fraction,
    guarded,
    paper,
    tabulate,
)


def rule_named(
    fill: str | float, row: ProfileRow, row_bytes: int, returns: float = RETURNS
) -> FillRule:
    """The fill rule of a setting. `auto` invests: a fill is credited with the misses that it is
    expected to save, `returns` of them.
    """
    if isinstance(fill, float):
        return fraction(fill)
    if fill == "all":
        return fill_all
    if fill == "none":
        return fill_none
    if fill == "paper":
        return paper(row)
    if fill == "balanced":
        return guarded(row, row_bytes)
    return auto_rule(row, row_bytes, returns)


def quota_table(
    fill: str | float, row: ProfileRow, row_bytes: int, most: int, returns: float = RETURNS
) -> tuple[int, ...]:
    """`tabulate(rule_named(...), most)`, in time that is linear in `most`."""
    if fill not in ("auto", "balanced"):
        return tabulate(rule_named(fill, row, row_bytes), most)
    credit_s = returns * _miss_s(row, row_bytes) if fill == "auto" else 0.0
    return tuple(
        _cheapest(row, row_bytes, misses, credit_s, guard=fill == "balanced")
        for misses in range(most + 1)
    )


def _miss_s(row: ProfileRow, row_bytes: int) -> float:
    """Seconds of one of many misses in the best split, as `auto_rule` credits them."""
    q = _cheapest(row, row_bytes, CREDITED, 0.0, guard=False)
    return branch_times(row, row_bytes, CREDITED, q).step_s / CREDITED


def _cheapest(row: ProfileRow, row_bytes: int, misses: int, credit_s: float, *, guard: bool) -> int:
    """Fills with the least cost, of equals the most."""
    if misses == 0:
        return 0
    none_s = row.handoff_s + misses * row_bytes / row.host
    all_s = row.fill_s + misses * row_bytes / row.link
    best, least = 0, none_s
    if misses > 1:
        for q in sorted(_bends(row, row_bytes, misses)):
            if 0 < q < misses:
                times = side_by_side(row, q * row_bytes, (misses - q) * row_bytes)
                cost = max(times) - q * credit_s
                if cost <= least:
                    best, least = q, cost
    if all_s - misses * credit_s <= least:
        best, least = misses, all_s - misses * credit_s
    if guard and all_s <= none_s and least >= all_s * (1 - GUARD):
        return misses
    return best


def _bends(row: ProfileRow, row_bytes: int, misses: int) -> set[int]:
    """Between these numbers of fills the time of a split is a straight line."""
    link, host = row_bytes / row.link_shared, row_bytes / row.host_shared
    lead_s = row.handoff_s - row.fill_s
    even = floor((lead_s + misses * host) / (link + host))  # both take as long
    early = floor(lead_s / link)  # the link is done before the host has begun
    late = misses + floor(lead_s / host)  # or the other way round
    return {1, misses - 1, even, even + 1, early, early + 1, late, late + 1}
