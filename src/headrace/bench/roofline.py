"""What a decode step could take at the least: its bytes over the memory's or the cores' rate.

The cores' rate of a format is measured with the kernels of decode themselves, on rows that lie in
cache; whichever rate is lower binds.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace import _native
from headrace.bench.report import spread
from headrace.formats.format import Format
from headrace.models.source import ModelSource
from headrace.weights.rows import row_names

MEASURE_SECONDS = 0.15


def step_bytes(source: ModelSource) -> Counter[Format]:
    """Bytes of weights that one token reads, by number format: the dense ones, and of each layer's
    experts the chosen share; of an embedding that is no output head nothing.
    """
    facts, plan = source.facts, source.plan
    share: dict[str, float] = {"embed": 0.0} if facts.embedding_bytes else {}
    for layer, experts in enumerate(facts.experts):
        for name in row_names(layer) if experts else ():
            share[name] = facts.top_k[layer] / experts
    read: Counter[Format] = Counter()
    for name, pieces in plan.pieces.items():
        for piece in pieces:
            read[piece.format] += round(piece.nbytes * share.get(name, 1.0))
    return +read


@dataclass(slots=True)
class Roofline:
    """Rates of the formats of one model, measured now and then."""

    by_format: Mapping[Format, int]
    columns: int
    rates: dict[str, list[float]] = field(default_factory=dict)  # bytes/s

    def measure(self, pool: _native.Pool) -> None:
        """One more rate of every format that is a notable part of a step."""
        least = sum(self.by_format.values()) // 100
        for form, nbytes in self.by_format.items():
            if nbytes > least and self.columns % form.multiple == 0:
                rate = _native.measure_product_rate(pool, form.code, self.columns, MEASURE_SECONDS)
                self.rates.setdefault(form.name, []).append(rate)

    def seconds(self, bandwidth: float, other_bytes: int = 0) -> float:
        """The least time of a step, of which `other_bytes` are no weights."""
        total = other_bytes / bandwidth
        for form, nbytes in self.by_format.items():
            rates = self.rates.get(form.name)
            total += nbytes / min(bandwidth, statistics.median(rates) if rates else bandwidth)
        return total

    def report(self) -> dict[str, Any]:
        """Bytes and rates of each format."""
        return {
            form.name: {"step_bytes": nbytes}
            | (
                {"bytes_per_s_in_cache": spread(self.rates[form.name])}
                if form.name in self.rates
                else {}
            )
            for form, nbytes in self.by_format.items()
        }
