"""A clock that is charged, not waited for: the device's kernels, the link and the host pool.

Kernels advance `now`; link and host work beside them and, while both are at it, at the rates that
were declared for both at once. Deterministic.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headrace.planning.profile import ProfileRow

Observed = tuple[int, int]  # rows, nanoseconds


@dataclass(slots=True)
class _Work:
    """Of one flow; `fixed_s` passes before the first byte."""

    rows: int
    nbytes: float
    fixed_s: float
    mark: int
    began_s: float = -1.0


class _Flow:
    """First in, first out."""

    def __init__(self) -> None:
        self.queue: deque[_Work] = deque()
        self.log: list[Observed] = []
        self.done_s = 0.0  # of the last that ended
        self.nbytes = 0  # ever queued
        self.busy_s = 0.0

    def add(self, rows: int, nbytes: int, fixed_s: float, mark: int) -> None:
        self.nbytes += nbytes
        self.queue.append(_Work(rows, float(nbytes), fixed_s if nbytes else 0.0, mark))

    def next_event_s(self, rate: float) -> float:
        """Seconds to its next change, if the rate stays."""
        if not self.queue:
            return float("inf")
        work = self.queue[0]
        return work.fixed_s if work.fixed_s > 0 else work.nbytes / rate

    def advance(self, at_s: float, step_s: float, rate: float) -> None:
        if not self.queue:
            return
        work = self.queue[0]
        if work.began_s < 0:
            work.began_s = at_s
        self.busy_s += step_s
        if work.fixed_s > 0:
            work.fixed_s = max(0.0, work.fixed_s - step_s)
        else:
            work.nbytes -= step_s * rate
        if work.nbytes < 1e-3 and work.fixed_s < 1e-15:
            self.queue.popleft()
            self.done_s = at_s + step_s
            self.log.append((work.rows, round((self.done_s - work.began_s) * 1e9)))


class VirtualClock:
    """`row`: bytes/s and fixed costs of link and host; may be changed while it runs.

    `kernels`, `flops`: bytes/s and operations/s of the device's kernels.
    """

    def __init__(self, row: ProfileRow, *, kernels: float, flops: float) -> None:
        self.row = row
        self._kernels, self._flops = kernels, flops
        self.now = 0.0
        self.compute_s = 0.0
        self.link, self.host = _Flow(), _Flow()
        self._at = 0.0  # both flows are known up to here
        self._marks = 0

    def kernel(self, nbytes: int, flops: int) -> None:
        """The device computes: max(bytes / rate, operations / rate) seconds."""
        seconds = max(nbytes / self._kernels, flops / self._flops)
        self.now += seconds
        self.compute_s += seconds

    def transfer(self, nbytes: int, rows: int = 0) -> int:
        """Queue bytes on the link, behind what it has; returns a mark to wait for."""
        self._run(self.now)
        self._marks += 1
        self.link.add(rows, nbytes, self.row.fill_s, self._marks)
        return self._marks

    def host_work(self, nbytes: int, rows: int = 0) -> None:
        """The host pool computes with so many bytes of experts."""
        self._run(self.now)
        self.host.add(rows, nbytes, self.row.handoff_s, 0)

    @property
    def marked(self) -> int:
        """The mark of the last transfer."""
        return self._marks

    def wait_link(self, mark: int | None = None) -> None:
        """The device waits for all that was queued up to `mark`; None = for everything."""
        last = self._marks if mark is None else mark
        while self.link.queue and self.link.queue[0].mark <= last:
            self._advance(float("inf"))
        self.now = max(self.now, self._at)

    def wait_host(self) -> None:
        """The device waits for the host pool."""
        while self.host.queue:
            self._advance(float("inf"))
        self.now = max(self.now, self._at)

    def _run(self, until_s: float) -> None:
        while self._at < until_s and (self.link.queue or self.host.queue):
            self._advance(until_s)
        self._at = max(self._at, until_s)

    def _advance(self, until_s: float) -> None:
        """To the next event: a flow gets to its bytes or ends, or `until_s` is reached."""
        both = bool(self.link.queue) and bool(self.host.queue)
        row = self.row
        link = row.link_shared if both else row.link
        host = row.host_shared if both else row.host
        step_s = min(until_s - self._at, self.link.next_event_s(link), self.host.next_event_s(host))
        at_s = self._at
        self._at += step_s
        self.link.advance(at_s, step_s, link)
        self.host.advance(at_s, step_s, host)
