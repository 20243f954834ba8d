"""Where a state is saved. Decided by the prompt alone, never by what is cached."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

SPACING = 1024  # tokens between states where a prompt names no place
# States lie closer together only where a conversation goes on: there they are worth their memory.
CLOSE = 256


class Cuts:
    """Positions of one prompt at which states are saved, ascending; its end is the last."""

    def __init__(
        self,
        length: int,
        anchors: Sequence[int],
        inner: Sequence[int] = (),
        *,
        spacing: int = SPACING,
    ) -> None:
        """`anchors`: where parts of the prompt begin; the first and the last two always count.
        `inner`: places within parts."""
        inside = sorted({a for a in anchors if 0 < a < length})
        wanted = {*inside[:1], *inside[-2:], length}
        kept: list[int] = []
        for at in sorted({*inside, *range(spacing, length, spacing), length}):
            if at in wanted or at - (kept[-1] if kept else 0) >= min(CLOSE, spacing):
                kept.append(at)
        for at in sorted({a for a in inner if 0 < a < length}):
            i = bisect_left(kept, at)
            if kept[i] - at >= CLOSE and at - (kept[i - 1] if i else 0) >= CLOSE:
                kept.insert(i, at)
        self.positions = tuple(kept)
        self._spacing = spacing

    def next(self, start: int) -> int:
        """The first cut behind position `start`; behind the prompt by spacing alone."""
        i = bisect_right(self.positions, start)
        if i < len(self.positions):
            return self.positions[i]
        return (start // self._spacing + 1) * self._spacing

    def within(self, start: int, end: int) -> list[int]:
        """All cuts behind position `start`, up to `end`."""
        found: list[int] = []
        while (at := self.next(found[-1] if found else start)) <= end:
            found.append(at)
        return found

    def last(self, limit: int) -> int:
        """The last cut of the prompt at most at position `limit`, 0 if there is none."""
        i = bisect_right(self.positions, limit)
        return self.positions[i - 1] if i else 0

    def __contains__(self, position: int) -> bool:
        if position > self.positions[-1]:
            return position % self._spacing == 0
        i = bisect_left(self.positions, position)
        return i < len(self.positions) and self.positions[i] == position
