"""q[m] of one layer kind, kept true while it is used: both branches are timed, the row corrected.

A rule that leaves a branch empty would never learn that it has become the better one; so a branch
that has not been seen for long is given one expert a layer until it has been timed again. How long
is such that trials cost less than the guard's 3% of all time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from headrace.planning.profile import Correction, ProfileRow
from headrace.planning.quotas import quota_table
from headrace.planning.split import GUARD, BranchTimes, Returns, branch_times, from_table

TABLE = 64  # misses that are tabulated at most; beyond, the last share goes on
MOVED = 0.04  # a rate that moved less since the last table makes no new one
UNSEEN_STEPS = 24  # at least so many before a branch is tried again
WINDOW = 21  # timed layers whose median is believed
TRIED_LAYERS = 15  # timed before a trial ends: most of the window
LEARNT = 0.1  # what a fill brings: a smaller change makes no new table
KEPT = 256  # layers whose times are kept for the report


@dataclass(frozen=True, slots=True)
class Timing:
    """One branch over the last layers: mean seconds, and the median error of the prediction."""

    layers: int
    predicted_s: float
    observed_s: float
    error: float  # |predicted - observed| / observed


class _Branch:
    """Whether it has been seen lately, and how well it was predicted."""

    def __init__(self) -> None:
        self.unseen = 0  # steps
        self.left = 0  # layers that the trial still wants
        self._times: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def see(self, predicted_s: float, observed_s: float) -> None:
        self.unseen = 0
        self.left = max(0, self.left - 1)
        self._times.append((predicted_s, observed_s))

    def step(self, patience: float) -> None:
        """A step has ended; `patience`: steps without a sight of it before a trial."""
        self.unseen += 1
        if not self.left and self.unseen >= max(UNSEEN_STEPS, patience):
            self.left = TRIED_LAYERS

    def timing(self) -> Timing:
        times = tuple(self._times)  # whoever asks may be another thread
        if not times:
            return Timing(0, 0.0, 0.0, 0.0)
        n = len(times)
        return Timing(
            n,
            sum(predicted for predicted, _ in times) / n,
            sum(observed for _, observed in times) / n,
            median(abs(p - o) / o for p, o in times),
        )


class AdaptiveQuota:
    """Observes every layer of its kind and makes a new table between steps when it is due.

    A rule that looks at no bandwidth (all, none, a fraction) keeps its table for ever.
    """

    def __init__(
        self, row: ProfileRow, row_bytes: int, fill: str | float, most: int, slots: int = 1
    ) -> None:
        """`slots`: of the cache that these layers fill, from which `auto` learns what a fill
        brings.
        """
        self._correction = Correction(row, window=WINDOW)
        self._tabulated = row
        self._row_bytes = row_bytes
        self._fill = fill
        self._most = min(most, TABLE)
        self._fixed = isinstance(fill, float) or fill in ("all", "none")
        self._returns = Returns(row, row_bytes, max(1, slots))
        self._credited = self._returns.value
        self._rule = quota_table(fill, row, row_bytes, self._most, self._credited)
        self._table = self._rule
        self._link, self._host = _Branch(), _Branch()
        self._step: list[tuple[int, int, float, float]] = []  # layers of the step that runs
        self._usual = 1  # misses of a layer

    @property
    def table(self) -> tuple[int, ...]:
        """`q[m]` as it is to be used now."""
        return self._table

    @property
    def row(self) -> ProfileRow:
        """Bandwidths as they are believed to be now."""
        return self._correction.row

    def predicted(self, misses: int, fills: int) -> BranchTimes:
        """Times of both branches by the present row."""
        return branch_times(self.row, self._row_bytes, misses, fills)

    def observe(
        self, fills: int, host: int, *, fill_s: float, host_s: float, hits: int = 0
    ) -> None:
        """One layer of one decode step: rows of each branch, and how long each took."""
        self._step.append((fills, host, fill_s, host_s))
        if self._fill == "auto":
            self._returns.observe(hits + fills + host, hits, fills, host)

    def resize(self, slots: int) -> None:
        """The cache has so many slots from now on."""
        self._returns.resize(max(1, slots))

    def retabulate(self) -> tuple[int, ...] | None:
        """Call once after each step: the new table, or None while the old one stands."""
        layers, self._step = [seen for seen in self._step if seen[0] or seen[1]], []
        if not layers:
            return None
        self._see(layers)
        self._correction.observe_step(self._row_bytes, layers)
        if self._fixed:
            return None
        self._trials(layers)
        self._returns.row = self.row
        returns = self._returns.value
        learnt = self._fill == "auto" and abs(returns - self._credited) > LEARNT * self._credited
        if learnt or _moved(self._tabulated, self.row):
            self._tabulated, self._credited = self.row, returns
            self._rule = quota_table(self._fill, self.row, self._row_bytes, self._most, returns)
        table = self._tried(self._rule)
        if table == self._table:
            return None
        self._table = table
        return table

    def timings(self) -> dict[str, Timing]:
        """Predicted against observed, for status and metrics."""
        return {"link": self._link.timing(), "host": self._host.timing()}

    def _see(self, layers: Sequence[tuple[int, int, float, float]]) -> None:
        expected = {pair: self.predicted(sum(pair), pair[0]) for pair in {s[:2] for s in layers}}
        for fills, host, fill_s, host_s in layers:
            times = expected[fills, host]
            if fills and fill_s > 0:
                self._link.see(times.fill_s, fill_s)
            if host and host_s > 0:
                self._host.see(times.host_s, host_s)

    def _trials(self, layers: Sequence[tuple[int, int, float, float]]) -> None:
        """They fall due: the rarer, the more one would cost against the split as it is."""
        misses = sum(fills + host for fills, host, _, _ in layers)
        misses = self._usual = max(1, round(misses / len(layers)))
        steps = ceil(2 * TRIED_LAYERS / len(layers))  # of a trial: half of the layers miss less
        fills = from_table(self._rule)(misses)
        usual_s = self.predicted(misses, fills).step_s
        for branch, tried in ((self._link, max(fills, 1)), (self._host, min(fills, misses - 1))):
            extra = self.predicted(misses, tried).step_s / usual_s - 1
            branch.step(steps * extra / GUARD)

    def _tried(self, table: tuple[int, ...]) -> tuple[int, ...]:
        """One expert for a branch on trial, where as many are missing as usual: there it costs
        least.
        """
        if self._link.left:
            return tuple(max(q, 1) if m >= self._usual else q for m, q in enumerate(table))
        if self._host.left:
            return tuple(min(q, m - 1) if m >= self._usual else q for m, q in enumerate(table))
        return table


def _moved(old: ProfileRow, new: ProfileRow) -> bool:
    pairs = ((old.link, new.link), (old.host, new.host))
    return any(abs(after / before - 1) > MOVED for before, after in pairs)
