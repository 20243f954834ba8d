"""What capacity buys: misses by share of the experts on the device, prompts found by KV kept.

Both are tables with straight lines between the points; better ones can be put in their place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by rising x; level beyond both ends."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        xs = [x for x, _ in self.points]
        assert xs
        assert all(a < b for a, b in pairwise(xs)), "x must rise"

    def at(self, x: float) -> float:
        """y, on the line between the neighbouring points."""
        i = bisect_right(self.points, x, key=lambda point: point[0])
        if i == 0:
            return self.points[0][1]
        if i == len(self.points):
            return self.points[-1][1]
        (x0, y0), (x1, y1) = self.points[i - 1], self.points[i]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


SHARES = (0.0, 0.05, 0.11, 0.20, 0.37, 0.5, 1.0)
# Default policy: made-up routing of 40 layers x 256 experts, top-8, and recorded routing of 30
# layers x 8 experts, top-2 (docs/simulator.md). The misses of a cold start, which a long run
# forgets, are in them.
SPARSE_USE, SPARSE = 8 / 256, (1.0, 0.465, 0.276, 0.168, 0.095, 0.076, 0.0)
DENSE_USE, DENSE = 2 / 8, (1.0, 0.861, 0.671, 0.453, 0.257, 0.164, 0.0)


def miss_curve(use: float) -> Curve:
    """Miss rate by share of the experts on the device, for a model that uses `use` of them a token.

    A step of a model that uses many fills a small cache several times over. Between the two shapes
    by the logarithm: of 32 experts, top-4, it gives 73 % and 54 % at 5 % and 11 % of the experts,
    where the simulator had 74 % and 50 %.
    """
    way = log(use / SPARSE_USE) / log(DENSE_USE / SPARSE_USE)
    way = max(0.0, min(1.0, way))
    rates = [(1 - way) * low + way * high for low, high in zip(SPARSE, DENSE, strict=True)]
    return Curve(tuple(zip(SHARES, rates, strict=True)))


# Share of a returning prompt that is still held, by KV tokens over the prompt's length. Nobody has
# measured it for all users: one conversation is found where it fits, two that alternate need both.
REUSE = Curve(((0.0, 0.0), (1.0, 0.5), (2.0, 0.75), (4.0, 0.9), (8.0, 1.0)))

# Of a returning prompt whose keys and values are held, the share that a saved state
# leads to, by states saved. An assumption too: the first keeps the end of the last turn, the next
# ones earlier cuts of it and the ends of other conversations.
KEPT = Curve(((0.0, 0.0), (1.0, 0.5), (2.0, 0.7), (4.0, 0.85), (8.0, 0.95), (16.0, 1.0)))


@dataclass(frozen=True, slots=True)
class Habits:
    """How a coding agent uses an engine, for weighing its caches against experts. Tokens."""

    prompt: int = 24_500  # sent again with each turn: the published floor of an email agent
    answer: int = 300
    reuse: Curve = REUSE
    kept: Curve = KEPT


def concave(values: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The upper envelope of points with rising x: those whose slopes fall."""
    hull: list[tuple[int, float]] = []
    for x, y in values:
        while len(hull) >= 2:
            (x0, y0), (x1, y1) = hull[-2], hull[-1]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    return hull
