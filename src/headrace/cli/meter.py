"""A line on standard error that shows how far long work has come; silent when nobody looks."""

from __future__ import annotations

import sys
import time

EVERY_S = 0.1
DELAY_S = 0.4  # what is done sooner needs no meter


class Meter:
    """Use as `with Meter("loading") as meter: work(meter.show)`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._on = sys.stderr.isatty()
        self._next = time.monotonic() + DELAY_S
        self._drawn = False

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.clear()

    def clear(self) -> None:
        """The line is gone until `show` draws it again."""
        if self._drawn:
            self._drawn = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def show(self, done: int, total: int, what: str = "") -> None:
        """`done` of `total` bytes or runs; `what` names a stage of the work."""
        now = time.monotonic()
        if not self._on or now < self._next:
            return
        self._next, self._drawn = now + EVERY_S, True
        share = min(1.0, done / total) if total else 0.0
        bar = "#" * round(24 * share)
        # Below a megabyte it is runs that are counted, not bytes.
        whole = size(total) if total >= 1_000_000 else f"{total}"
        sys.stderr.write(f"\r\x1b[K{what or self._what} [{bar:<24}] {share:4.0%} of {whole}")
        sys.stderr.flush()


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
