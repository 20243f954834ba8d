"""How the experts fare and what was resized, as Prometheus series with a label per layer kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

TIER = {
    "uses": "Uses of experts in decode steps, where they lie on disk",
    "misses": "Those that had to be read",
    "read_bytes": "Bytes of experts that were read",
}
USES = {
    "uses": "Experts that decode steps used, by layer",
    "hits": "Experts that were on the device",
    "fills": "Experts copied to the device and computed there",
    "host": "Experts computed on the host",
}
RATES = {"link": "link", "host": "host", "link_shared": "link", "host_shared": "host"}
FIXED = {"fill_s": "link", "handoff_s": "host"}
BUDGET = {
    "device_bytes": "Memory that the engine may use",
    "expert_slots": "Expert rows that the device has room for",
    "expert_bytes": "Bytes of those",
    "kv_tokens": "Tokens whose keys and values fit",
    "state_slots": "States of sequences that fit, recurrent or of windows",
}


def live_figures(live: Mapping[str, Any]) -> Iterator[Metric]:
    """Of the part `live` of an engine's status."""
    for name, what in BUDGET.items():
        yield _gauge(name, what, live["budget"][name])
    yield CounterMetricFamily("headrace_engine_resizes", "Resizes", value=live["resizes"])
    yield _gauge("recording", "Whether routing is recorded", live["recording"])
    last = live.get("last_resize")
    if last is not None:
        yield _gauge("last_resize_seconds", "Pause of the last resize", last["pause_s"])
    if "experts" in live:
        yield from _expert_figures(live["experts"]["kinds"])
    if "tier" in live:
        yield from _tier_figures(live["tier"])


def _tier_figures(told: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("tier_rows", "Experts that RAM has room for", told["rows"])
    yield _gauge("tier_resident", "Experts that are in RAM", told["resident"])
    for name, what in TIER.items():
        if name in told:
            family = CounterMetricFamily(f"headrace_tier_{name}", what)
            family.add_metric([], told[name])
            yield family


def _expert_figures(kinds: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for name, what in USES.items():
        family = CounterMetricFamily(f"headrace_expert_{name}", what, labels=["kind"])
        for kind, told in kinds.items():
            family.add_metric([kind], told[name])
        yield family
    yield _rates(kinds)
    yield _fixed(kinds)
    yield from _branches(kinds)


def _rates(kinds: Mapping[str, Mapping[str, Any]]) -> Metric:
    rates = GaugeMetricFamily(
        "headrace_expert_rate_bytes_per_second",
        "Bandwidths as they are believed to be now; shared: while the other side works, too",
        labels=["kind", "branch", "shared"],
    )
    for kind, told in kinds.items():
        for name, branch in RATES.items():
            shared = str(name.endswith("_shared")).lower()
            rates.add_metric([kind, branch, shared], told["rates"][name])
    return rates


def _fixed(kinds: Mapping[str, Mapping[str, Any]]) -> Metric:
    fixed = GaugeMetricFamily(
        "headrace_expert_fixed_seconds",
        "What a batch of fills or a trip to the host costs whatever its size",
        labels=["kind", "branch"],
    )
    for kind, told in kinds.items():
        for name, branch in FIXED.items():
            fixed.add_metric([kind, branch], told["rates"][name])
    return fixed


def _branches(kinds: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    labels = ["kind", "branch"]
    for name, what in (
        ("predicted", "Mean predicted time of a layer's branch, over the last layers timed"),
        ("observed", "Mean observed time of the same layers"),
    ):
        times = GaugeMetricFamily(f"headrace_expert_{name}_seconds", what, labels=labels)
        for kind, told in kinds.items():
            for branch, timing in told["branches"].items():
                times.add_metric([kind, branch], timing[f"{name}_s"])
        yield times
    errors = GaugeMetricFamily(
        "headrace_expert_prediction_error", "Median of |predicted - observed| / observed",
        labels=labels,
    )  # fmt: skip
    for kind, told in kinds.items():
        for branch, timing in told["branches"].items():
            errors.add_metric([kind, branch], timing["error"])
    yield errors


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"headrace_engine_{name}", what, value=float(value))
