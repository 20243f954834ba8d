"""Belady's bound: the fewest misses that any policy could have, knowing the future.

Exact for rows of one size: out goes the row whose next use is farthest away (Belady, IBM Systems
Journal 5(2), 1966), found in O(log slots) through a heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def belady_misses(uses: Sequence[int], capacity: int, *, bypass: bool = True) -> int:
    """Misses over `uses` from an empty cache of `capacity` rows.

    With `bypass` a missed row need not be taken in, as when the host computes it: no policy of ours
    can do better. Without, every miss displaces a row, which is the textbook bound.
    """
    following = _next_uses(uses)
    resident: dict[int, int] = {}  # row -> its next use
    farthest: list[tuple[int, int]] = []  # (-next use, row); stale where `resident` differs
    misses = 0
    for i, row in enumerate(uses):
        again = following[i]
        if row not in resident:
            misses += 1
            if len(resident) >= capacity:
                while resident.get(farthest[0][1]) != -farthest[0][0]:
                    heapq.heappop(farthest)
                if bypass and -farthest[0][0] <= again:
                    continue
                del resident[heapq.heappop(farthest)[1]]
        resident[row] = again
        heapq.heappush(farthest, (-again, row))
    return misses


def _next_uses(uses: Sequence[int]) -> list[int]:
    """For each use the place of the row's next one; beyond the end where there is none."""
    end = len(uses)
    following = [0] * end
    last: dict[int, int] = {}
    for i in range(end - 1, -1, -1):
        following[i] = last.get(uses[i], end + i)
        last[uses[i]] = i
    return following
