"""One byte budget, several claims on it: the last byte saves the same time wherever it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.planning.curves import concave

POINTS = 257  # of a curve that are looked at; between them it is taken as straight


@dataclass(frozen=True, slots=True)
class Claim:
    """Units of one kind; `saved(units)` is the seconds per step that so many of them save."""

    unit_bytes: int
    least: int
    most: int
    saved: Callable[[int], float]


def divide(total: int, claims: Sequence[Claim]) -> list[int]:
    """Units of each claim, with the most time saved in `total` bytes.

    Greedy along the concave envelopes of the curves, which is the optimum but for less than a unit.
    The least units are given first and must fit; what saves nothing more is not given out.
    """
    units = [claim.least for claim in claims]
    left = total - sum(claim.least * claim.unit_bytes for claim in claims)
    assert left >= 0, "the least does not fit"
    segments = [
        (slope / claim.unit_bytes, which, count)
        for which, claim in enumerate(claims)
        for count, slope in _segments(claim)
    ]
    # Equal slopes keep the order of the claims; slopes of one claim fall, so it is never cut ahead.
    for slope, which, count in sorted(segments, key=lambda segment: -segment[0]):
        if slope <= 0:
            break
        given = min(count, left // claims[which].unit_bytes)
        units[which] += given
        left -= given * claims[which].unit_bytes
    return units


def _segments(claim: Claim) -> list[tuple[int, float]]:
    """(units, seconds per unit) of the envelope, the steepest first."""
    span = claim.most - claim.least
    if span <= 0:
        return []
    steps = min(span, POINTS - 1)
    xs = [claim.least + span * i // steps for i in range(steps + 1)]
    hull = concave([(x, claim.saved(x)) for x in xs])
    return [(x1 - x0, (y1 - y0) / (x1 - x0)) for (x0, y0), (x1, y1) in pairwise(hull)]
