"""What the engine did, as plain numbers: written by the engine thread, read by any. No torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from headrace.engine.request import Finish, RequestId, TokenEvent

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
TOKENS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)


class Histogram:
    """Counts of values at or below each bound, plus sum and count."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> dict[str, Any]:
        """`buckets`: [bound, values at or below it] each, the last bound is infinity."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), list(self._counts), strict=True):
            total += count
            buckets.append([bound, total])
        return {"buckets": buckets, "sum": self._sum, "count": total}


class Metrics:
    """Counters since the engine was loaded."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._finished = dict.fromkeys(Finish, 0)
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._step_seconds = Histogram(SECONDS)
        self._step_tokens = Histogram(TOKENS)
        self._first_token_seconds = Histogram(SECONDS)
        self._next_token_seconds = Histogram(SECONDS)
        self._since: dict[RequestId, tuple[float, bool]] = {}  # last token or submit; had a token

    def submitted(self, id: RequestId, prompt_tokens: int) -> None:
        self._prompt_tokens += prompt_tokens
        self._since[id] = (self._clock(), False)

    def stepped(self, seconds: float, tokens: int) -> None:
        self._step_seconds.observe(seconds)
        self._step_tokens.observe(tokens)

    def happened(self, events: Sequence[TokenEvent]) -> None:
        """Events of one step, as they leave the engine."""
        now = self._clock()
        for event in events:
            since, running = self._since[event.request]
            if event.token is not None:
                self._generated_tokens += 1
                histogram = self._next_token_seconds if running else self._first_token_seconds
                histogram.observe(now - since)
                self._since[event.request] = (now, True)
            if event.finish is not None:
                self._finished[event.finish] += 1
                del self._since[event.request]

    def snapshot(self) -> dict[str, Any]:
        return {
            "requests": {finish.value: n for finish, n in self._finished.items()},
            "prompt_tokens": self._prompt_tokens,
            "generated_tokens": self._generated_tokens,
            "step_seconds": self._step_seconds.snapshot(),
            "step_tokens": self._step_tokens.snapshot(),
            "first_token_seconds": self._first_token_seconds.snapshot(),
            "next_token_seconds": self._next_token_seconds.snapshot(),
        }
