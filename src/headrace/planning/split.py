"""How many misses are filled over the link, which ones, and which stay with the host.

Every miss ends in exactly one of the two sets, so no expert is ever dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.planning.facts import ExpertKey
from headrace.planning.lru import Placement, SlotTable
from headrace.planning.profile import ProfileRow, side_by_side

FillRule = Callable[[int], int]  # misses -> fills, 0 <= fills <= misses

# A split that is predicted to gain less than this over one branch alone is not worth its risk.
GUARD = 0.03

# Further uses of a filled row. In `headrace simulate` small caches bear out 1, large ones 2 to 3; a
# number of its own for each machine and cache would do better still. See docs/simulator.md.
RETURNS = 1.5


MOST_RETURNS = 16.0  # less never pays for the first fill over a link at a tenth of the host
RETURNS_SCALE = 0.5
HOPE_TURNOVERS = 0.5  # weight of the hopeful start, in fillings of the cache
LEDGER_SLACK = 0.02
LEDGER_KEEP = 1 - 1 / 50_000  # layers of steps that the ledger remembers


# Misses over which the cost of one is taken.
CREDITED = 64


class MissPlan(NamedTuple):
    """What one layer of one step does with each active expert."""

    hits: tuple[ExpertKey, ...]
    fills: tuple[Placement, ...]  # copied to the device, computed there, resident from now on
    host: tuple[ExpertKey, ...]  # computed where they lie


@dataclass(frozen=True, slots=True)
class BranchTimes:
    """Seconds of both branches of one layer's misses; they run at the same time."""

    fill_s: float
    host_s: float

    @property
    def step_s(self) -> float:
        return max(self.fill_s, self.host_s)


def fill_all(misses: int) -> int:
    """Every miss goes over the link."""
    return misses


def fill_none(misses: int) -> int:
    """Every miss is computed on the host; the cache never changes."""
    del misses
    return 0


def paper(row: ProfileRow) -> FillRule:
    """q* = m * B_P / B_H, at least one fill (arXiv 2608.16157, equation 3)."""
    share = min(1.0, row.link / row.host)

    def rule(misses: int) -> int:
        return min(misses, max(1, round(misses * share)))

    return rule


def fraction(share: float) -> FillRule:
    """A fixed share of the misses, rounded half up."""
    assert 0.0 <= share <= 1.0

    def rule(misses: int) -> int:
        return int(misses * share + 0.5)

    return rule


def balanced(row: ProfileRow, row_bytes: int) -> FillRule:
    """The fills with the least predicted time; of equals the most, because a fill warms the cache.

    `row_bytes`: one expert.
    """

    def rule(misses: int) -> int:
        times = [branch_times(row, row_bytes, misses, q).step_s for q in range(misses + 1)]
        best = min(times)
        return max(q for q, time_s in enumerate(times) if time_s == best)

    return rule


def investing(row: ProfileRow, row_bytes: int, returns: float = RETURNS) -> FillRule:
    """As `balanced`, but a fill is credited with the host time that it saves later.

    `returns`: further uses of a filled row, beyond those of the row it displaces. Where link and
    host share one memory a split hardly shortens the step it is made in, and `balanced` alone may
    leave the cache as cold as it is; this rule pays for what later steps gain.
    """
    credit_s = returns * row_bytes / row.host

    def rule(misses: int) -> int:
        costs = [
            branch_times(row, row_bytes, misses, q).step_s - q * credit_s for q in range(misses + 1)
        ]
        best = min(costs)
        return max(q for q, cost in enumerate(costs) if cost == best)

    return rule


def auto_rule(row: ProfileRow, row_bytes: int, returns: float) -> FillRule:
    """As `investing`, but a fill is credited with what its misses would cost in the best split.

    `returns`: see `Returns.value`; with 0 this is `balanced`, which no pure rule ever beats in the
    step at hand.
    """
    times = [branch_times(row, row_bytes, CREDITED, q).step_s for q in range(CREDITED + 1)]
    best_s = min(times) / CREDITED
    return investing(row, row_bytes, returns * best_s * row.host / row_bytes)


class Returns:
    """How often a filled row is used again instead of a miss, learnt from what a cache showed.

    `hits / fills` over about one turnover of the cache is what a row brings on average. One more
    fill brings less, because it displaces a row that had its own: half the square root of it,
    fitted in `headrace simulate`. A cold cache says nothing, so the start is hopeful. What hope
    costs is bounded by a ledger: 2% of what the host alone would have taken for everything, and the
    time to fill half the cache once. While it is overdrawn the value is 0.
    """

    def __init__(self, row: ProfileRow, row_bytes: int, slots: int) -> None:
        self.row = row  # may be replaced by a corrected one at any time
        self._row_bytes = row_bytes
        self._slots = slots
        self._fills = HOPE_TURNOVERS * slots
        self._hits = self._fills * (MOST_RETURNS / RETURNS_SCALE) ** 2
        self._spent_s = 0.0
        self._allowed_s = HOPE_TURNOVERS * slots * row_bytes / row.link

    def observe(self, active: int, hits: int, fills: int, host: int) -> None:
        """Counts of one layer of one step, as `plan` gives them."""
        assert active == hits + fills + host
        kept = self._slots / (self._slots + fills)
        self._fills = self._fills * kept + fills
        self._hits = self._hits * kept + hits
        alone_s = branch_times(self.row, self._row_bytes, active, 0).step_s
        spent_s = branch_times(self.row, self._row_bytes, fills + host, fills).step_s
        self._spent_s = self._spent_s * LEDGER_KEEP + spent_s
        self._allowed_s = self._allowed_s * LEDGER_KEEP + alone_s * (1 + LEDGER_SLACK)

    def resize(self, slots: int) -> None:
        """The cache has so many slots from now on."""
        self._slots = slots

    @property
    def value(self) -> float:
        """For `auto_rule`: 0 to 16."""
        if self._spent_s > self._allowed_s:
            return 0.0
        mean = self._hits / self._fills
        return min(MOST_RETURNS, mean, RETURNS_SCALE * math.sqrt(mean))


def guarded(row: ProfileRow, row_bytes: int) -> FillRule:
    """`balanced`, but fill-all where that is the better pure rule and the split gains 3% or less.

    Against host-only a split that gains nothing stays: it takes no longer and warms the cache.
    """
    best = balanced(row, row_bytes)

    def rule(misses: int) -> int:
        q = best(misses)
        all_s = branch_times(row, row_bytes, misses, misses).step_s
        none_s = branch_times(row, row_bytes, misses, 0).step_s
        split_s = branch_times(row, row_bytes, misses, q).step_s
        return q if none_s < all_s or split_s < all_s * (1 - GUARD) else misses

    return rule


def branch_times(row: ProfileRow, row_bytes: int, misses: int, fills: int) -> BranchTimes:
    """Predicted times; see `side_by_side`."""
    assert 0 <= fills <= misses
    return BranchTimes(*side_by_side(row, fills * row_bytes, (misses - fills) * row_bytes))


def tabulate(rule: FillRule, most: int) -> tuple[int, ...]:
    """`q[m]` for m = 0..most, so that a device only looks it up."""
    table = tuple(rule(misses) for misses in range(most + 1))
    assert all(0 <= q <= m for m, q in enumerate(table)), "a rule fills more than the misses"
    return table


def from_table(table: Sequence[int]) -> FillRule:
    """The rule that was tabulated; misses beyond its end keep the last share."""
    last = len(table) - 1

    def rule(misses: int) -> int:
        return table[misses] if misses <= last else misses * table[last] // last

    return rule


def plan_misses(active: Sequence[ExpertKey], slots: SlotTable, rule: FillRule) -> MissPlan:
    """Decide one layer of one step and update the table. `active`: different experts of the layer.

    Filled are the misses most likely to return, as the policy knew them before this step. Fewer
    than the rule says are filled where the policy takes nothing in or the slots are too few.
    """
    active = sorted(active)
    hits, misses = slots.classify(active)
    wanted = rule(len(misses)) if misses else 0
    assert 0 <= wanted <= len(misses), "a rule fills more than the misses"
    if wanted:
        misses = slots.likeliest(misses)
    slots.touch(active)
    fills = tuple(slots.admit(misses[:wanted], spared=active)) if wanted else ()
    return MissPlan(tuple(hits), fills, tuple(sorted(misses[len(fills) :])))
