"""Fills a bandwidth profile: link and host on this checkpoint's own rows, each alone and both at
once.

Every copy and every computation takes rows that the last ones did not, so that no cache helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median

import torch
from torch import Tensor

from headrace.device.device import Accelerator
from headrace.experts.bank import ExpertBank
from headrace.ops.experts.native import expert_layer
from headrace.planning.profile import ProfileRow

ROUNDS = 9
MOST_ROWS = 8
BUSY_S = 0.02  # that a side is kept busy when both are timed at once, at least
MOST_BATCHES = 256  # of one side at a time; what is observed is remembered for a few thousand
SPREAD = 64 << 20  # bytes of slots that are written in turn, where there is room


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = fixed_s + bytes / rate."""

    fixed_s: float
    rate: float


def measure(
    bank: ExpertBank,
    device: Accelerator,
    layers: Sequence[int],
    progress: Callable[[str], None] = lambda _: None,
) -> ProfileRow:
    """Of the kind of layer that `layers` are. Raises CapacityError without room for a few rows."""
    bench = _Bench(bank, device, layers)
    try:
        progress("link alone")
        link = fitted(bench.row_bytes, bench.timed(bench.link))
        progress("host alone")
        host = fitted(bench.row_bytes, bench.timed(bench.host))
        progress("both at once")
        shared = bench.shared(link, host)
    finally:
        bench.close()
    return ProfileRow(
        link=link.rate,
        host=host.rate,
        link_shared=shared[0],
        host_shared=shared[1],
        fill_s=link.fixed_s,
        handoff_s=host.fixed_s,
    )


def fitted(row_bytes: int, seconds: dict[int, list[float]]) -> Line:
    """The least-squares line through the median of each number of rows; never a negative cost."""
    points = [(rows * row_bytes, median(times)) for rows, times in seconds.items()]
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points)
    slope /= sum((x - mean_x) ** 2 for x, _ in points) or 1.0
    fixed_s = mean_y - slope * mean_x
    if slope <= 0 or fixed_s < 0:  # noise: all of it is bandwidth
        return Line(0.0, sum(x for x, _ in points) / sum(y for _, y in points))
    return Line(fixed_s, 1 / slope)


def _rate(nbytes: int, seconds: float, alone: float) -> float:
    """Beside the other a side is at most as fast as alone."""
    return min(alone, nbytes / seconds) if seconds > 0 else alone


class _Bench:
    def __init__(self, bank: ExpertBank, device: Accelerator, layers: Sequence[int]) -> None:
        self._bank, self._device = bank, device
        self._most = min(MOST_ROWS, bank.rows(layers[0]).count)
        self._slots = self._room()
        self._memory = device.elastic(self._slots * bank.slot_bytes)
        self._memory.resize(self._slots * bank.slot_bytes)
        self._next_slot = 0
        self._native = {layer: expert_layer(bank.rows(layer)) for layer in layers}
        self._picks = self._all_picks(layers)
        self.row_bytes = bank.row_bytes(layers[0])
        hidden = bank.facts.hidden
        self._x_TD = torch.randn(1, hidden)
        self._parts_TXD = torch.empty(1, self._most, hidden)

    def timed(self, run: Callable[[int], float]) -> dict[int, list[float]]:
        """Seconds by number of rows; numbers take turns, so that a slow moment hits all alike."""
        sizes = sorted({1, min(2, self._most), max(1, self._most // 2), self._most})
        run(self._most)
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(ROUNDS):
            for size in sizes:
                seconds[size].append(run(size))
        return seconds

    def link(self, rows: int) -> float:
        self._copy(rows)
        self._device.copies.wait()
        return self._seconds(self._device.copies.observations())

    def host(self, rows: int) -> float:
        self._ring(rows)
        self._device.host_pool.wait()
        return self._seconds(self._device.host_pool.observations())

    def both(self, fills: int, computed: int) -> tuple[float, float]:
        """As many rows on each side, in batches that follow each other."""
        # Copies queue up, and a ring waits for the one before: so both sides run throughout.
        for side, rows in ((self._copy, fills), (self._ring, computed)):
            for first in range(0, rows, self._most):
                side(min(rows - first, self._most))
        self._device.copies.wait()
        self._device.host_pool.wait()
        link, host = self._device.copies, self._device.host_pool
        return self._seconds(link.observations()), self._seconds(host.observations())

    def shared(self, link: Line, host: Line) -> tuple[float, float]:
        """Rates of both sides at once: each does as much as it can while the other is busy."""
        rates = link.rate, host.rate
        for _ in range(2):  # the second time with the rates that it takes to end together
            fills, computed = self._balance(*rates)
            both = [self.both(fills, computed) for _ in range(ROUNDS)]
            link_s, host_s = (median(times) for times in zip(*both, strict=True))
            # A queue of copies starts once; every ring is a trip of its own.
            host_s -= -(-computed // self._most) * host.fixed_s
            rates = (
                _rate(fills * self.row_bytes, link_s - link.fixed_s, link.rate),
                _rate(computed * self.row_bytes, host_s, host.rate),
            )
        return rates

    def _balance(self, link: float, host: float) -> tuple[int, int]:
        """Rows that keep both sides busy equally long."""
        seconds = max(BUSY_S, 2 * self._most * self.row_bytes / min(link, host))
        seconds = min(seconds, MOST_BATCHES * self._most * self.row_bytes / max(link, host))
        return tuple(  # type: ignore[return-value]
            max(1, round(seconds * rate / self.row_bytes)) for rate in (link, host)
        )

    def close(self) -> None:
        self._memory.close()

    def _copy(self, rows: int) -> None:
        layer, experts_E = self._pick(rows)
        self._device.copies.copy_rows(
            self._bank.layouts[layer].spans,
            experts_E,
            self._into(rows),
            torch.tensor([rows], dtype=torch.int32),
            self._memory.tensor,
            self._bank.slot_bytes,
        )

    def _ring(self, rows: int) -> None:
        layer, experts_E = self._pick(rows)
        ids_1X = experts_E.view(1, -1)
        self._device.host_pool.alert()
        self._device.host_pool.ring(
            self._x_TD,
            ids_1X,
            self._native[layer],
            self._parts_TXD[:, :rows],
            exact=self._device.exact,
        )
        self._kept = ids_1X  # read until the next ring

    def _pick(self, rows: int) -> tuple[int, Tensor]:
        layer, first = next(self._picks)
        count = self._bank.rows(layer).count
        chosen = [(first + i) % count for i in range(rows)]
        return layer, torch.tensor(chosen, dtype=torch.int32)

    def _room(self) -> int:
        """Slots to copy into: so many that a cache of the CPU does not hold them all."""
        slot = self._bank.slot_bytes
        return max(self._most, min(SPREAD, self._device.memory.free // 2) // slot)

    def _into(self, rows: int) -> Tensor:
        """Slots that were not written lately."""
        slots = [(self._next_slot + i) % self._slots for i in range(rows)]
        self._next_slot = (slots[-1] + 1) % self._slots
        return torch.tensor(slots, dtype=torch.int32)

    def _all_picks(self, layers: Sequence[int]) -> Iterator[tuple[int, int]]:
        count = self._bank.rows(layers[0]).count
        firsts = range(0, count, self._most)
        return cycle([(layer, first) for first in firsts for layer in layers])

    def _seconds(self, seen: list[tuple[int, int]]) -> float:
        return sum(nanoseconds for _, nanoseconds in seen) * 1e-9
