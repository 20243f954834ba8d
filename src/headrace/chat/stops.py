"""Stop strings over a stream of text: the result never depends on how the text is cut."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Passes text on until a stop string is complete; neither it nor what follows is delivered.

    The stop string that is *complete* first wins, and of several that end together the longest.
    Only text that may be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ValueError("an empty stop string")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.found: str | None = None

    @property
    def stopped(self) -> bool:
        return self.found is not None

    def feed(self, text: str) -> str:
        """The part of the text so far that can be delivered now."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        window = self._held + text
        ends = [
            (at + len(stop), -len(stop), stop)
            for stop in self._stops
            if (at := window.find(stop)) >= 0
        ]
        if ends:
            end, _, self.found = min(ends)
            self._held = ""
            return window[: end - len(self.found)]
        keep = held_back(window, self._stops)
        self._held = window[len(window) - keep :]
        return window[: len(window) - keep]

    def finish(self) -> str:
        """The text held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held


def held_back(window: str, marks: Sequence[str]) -> int:
    """Length of the longest end of `window` that is a proper beginning of one of `marks`."""
    longest = 0
    for mark in marks:
        at = window.find(mark[0], max(0, len(window) - len(mark) + 1))
        while 0 <= at < len(window) - longest:
            if mark.startswith(window[at:]):
                longest = len(window) - at
                break
            at = window.find(mark[0], at + 1)
    return longest
