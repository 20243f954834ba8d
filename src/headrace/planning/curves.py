"""What capacity buys: misses by share of the experts on the device, prompts found by KV kept.

Both are tables with straight lines between the points; better ones can be put in their place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


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


# Default policy on made-up routing of 40 layers x 256 experts, top-8: docs/simulator.md. The misses
# of a cold start, which a long run forgets, are in them.
MISSES = Curve(
    ((0.0, 1.0), (0.05, 0.465), (0.11, 0.276), (0.20, 0.168), (0.37, 0.095), (0.5, 0.076), (1, 0))
)

# Share of a returning prompt that is still held, by KV tokens over the prompt's length. Nobody has
# measured it for all users: one conversation is found where it fits, two that alternate need both.
REUSE = Curve(((0.0, 0.0), (1.0, 0.5), (2.0, 0.75), (4.0, 0.9), (8.0, 1.0)))


@dataclass(frozen=True, slots=True)
class Habits:
    """How a coding agent uses an engine, for weighing KV against experts. Tokens."""

    prompt: int = 24_500  # sent again with each turn: the published floor of an email agent
    answer: int = 300
    reuse: Curve = REUSE


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
