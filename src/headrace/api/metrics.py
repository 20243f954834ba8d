"""Counters of this server and the engine's own figures, in the Prometheus text format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.api.live_metrics import live_figures

WHOLE_S = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
COUNTERS = (  # those that only grow
    *("prompt_tokens", "generated_tokens", "preemptions"),
    *("cached_tokens", "prefix_hits", "prefix_evictions"),
)


class EngineFigures(Collector):
    """The engine's status: counters, gauges, histograms and finished requests by reason."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for name, value in self._read().items():
            metric, what = f"headrace_engine_{name}", f"Engine: {name.replace('_', ' ')}"
            if name == "requests":
                family = CounterMetricFamily(metric, what, labels=["finish"])
                for finish, count in value.items():
                    family.add_metric([finish], count)
                yield family
            elif name == "live":
                yield from live_figures(value)
            elif isinstance(value, Mapping) and "buckets" in value:
                buckets = [(_bound(bound), count) for bound, count in value["buckets"]]
                yield HistogramMetricFamily(metric, what, buckets=buckets, sum_value=value["sum"])
            elif isinstance(value, int | float):
                kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
                yield kind(metric, what, value=float(value))


def _bound(value: float) -> str:
    return "+Inf" if math.isinf(value) else repr(float(value))


def jsonable(tree: Any) -> Any:
    """A copy without infinities, which JSON lacks: the open end of a histogram becomes null."""
    if isinstance(tree, Mapping):
        return {str(key): jsonable(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [jsonable(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


class ServerMetrics:
    """One registry per application: two servers in one process do not mix."""

    def __init__(self, engine: Callable[[], Mapping[str, Any]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineFigures(engine))
        self._replies = Counter(
            "headrace_http_replies",
            "Replies by route and status",
            ["route", "status"],
            registry=self.registry,
        )
        self._answers = Counter(
            "headrace_answers",
            "Generations by outcome: whole, or cut by an error or a client that left",
            ["outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "headrace_answer_seconds",
            "From the request to the last event of a whole answer",
            buckets=WHOLE_S,
            registry=self.registry,
        )

    def replied(self, route: str, status: int) -> None:
        self._replies.labels(route, str(status)).inc()

    def answered(self, seconds: float, *, whole: bool) -> None:
        """`whole` is False when the client left or an error cut the answer."""
        self._answers.labels("whole" if whole else "cut").inc()
        if whole:
            self._seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
