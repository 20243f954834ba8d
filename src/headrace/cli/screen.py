"""An answer on standard output as it comes; reasoning is dimmed, and shown to people only."""

from __future__ import annotations

import sys

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Screen:
    """`write` pieces, then `end`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._people = sys.stdout.isatty()
        self._dim = False
        self._last = "\n"

    def write(self, text: str, reasoning: bool) -> None:
        if self._quiet or (reasoning and not self._people) or not text:
            return
        if reasoning != self._dim:
            self._switch(reasoning)
        sys.stdout.write(text)
        self._last = text
        sys.stdout.flush()

    def end(self) -> None:
        """Also after an interrupt: the terminal is left plain, on a new line."""
        if self._dim:
            self._switch(False)
        if not self._quiet and not self._last.endswith("\n"):
            sys.stdout.write("\n")
        self._last = "\n"
        sys.stdout.flush()

    def _switch(self, dim: bool) -> None:
        self._dim = dim
        gap = "" if self._last.endswith("\n") else "\n"
        sys.stdout.write(gap + (DIM if dim else PLAIN))
