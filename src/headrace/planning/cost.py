"""Predicted seconds of decode steps and prompt chunks, by placement. No torch.

In it are bytes at bandwidths, operations at rates, and the measured fixed costs of a fill and of a
trip to the host; not in it are launches, sampling and queueing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from typing import Literal

from headrace.planning.curves import Curve, miss_curve
from headrace.planning.facts import KvNeed, ModelFacts
from headrace.planning.profile import ProfileRow, layer_kind
from headrace.planning.split import branch_times, from_table

Prefill = Literal["stream", "on demand"]
Shape = tuple[int, int, int, int]  # of a MoE layer: experts, top k, bytes and weights of a row


@dataclass(frozen=True, slots=True)
class Speeds:
    """Where kernels run. Bytes/s and operations/s."""

    kernels: float  # at which kernels read weights beside them
    flops: float
    host_flops: float  # of the CPU that computes misses


@dataclass(frozen=True, slots=True)
class Seating:
    """Experts of a device: what its cost depends on."""

    placement: str  # resident, host, hybrid
    slots: int
    staging: int
    rows: Mapping[str, ProfileRow]  # by layer kind
    quotas: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Experts on disk: how many rows RAM holds, and bytes/s of the reads."""

    rows: int
    rate: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one decode step."""

    dense_s: float
    attention_s: float
    experts_s: float  # of layers in which nothing is missing: hits on the device
    misses_s: float  # what misses add to that

    @property
    def total_s(self) -> float:
        return self.dense_s + self.attention_s + self.experts_s + self.misses_s


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one model under one plan. `seating` None: all is computed where it lies."""

    facts: ModelFacts
    speeds: Speeds
    element_bytes: int  # of keys and values
    seating: Seating | None = None
    misses: Curve | None = None  # None = from the model's shape
    disk: OnDisk | None = None  # None: every expert is in memory; RAM's, behind a seating

    @property
    def share(self) -> float:
        """Of all experts, those that the device holds, or RAM where they lie on disk."""
        seating = self.seating
        if self.disk is not None and seating is None:
            return self.disk.rows / self.facts.rows
        if seating is None or seating.placement == "resident":
            return 1.0
        return min(1.0, seating.slots / self.facts.rows) if self.facts.rows else 1.0

    @property
    def miss_rate(self) -> float:
        """Of the experts that a decode step uses, in the long run."""
        if self.disk is not None and self.seating is None:
            return self._curve.at(self.share)
        if self.seating is None or self.seating.placement == "resident":
            return 0.0
        if self.seating.placement == "host":
            return 1.0
        # Nothing enters a cache that is never filled.
        if not any(any(table) for table in self.seating.quotas.values()):
            return 1.0
        return self._curve.at(self.share)

    @property
    def _curve(self) -> Curve:
        if self.misses is not None:
            return self.misses
        return miss_curve(sum(self.facts.top_k) / self.facts.rows)

    def decode(self, context: int, batch: int = 1) -> StepCost:
        """One token of each of `batch` sequences that are `context` tokens long."""
        facts, speeds = self.facts, self.speeds
        dense = facts.decode_bytes - self._active_bytes
        experts_s = misses_s = 0.0
        rate = self.miss_rate
        for layer, count in self._alike().items():
            uses = max(1, round(distinct(facts.experts[layer], facts.top_k[layer], batch)))
            hits_s = uses * facts.expert_bytes[layer] / speeds.kernels
            experts_s += count * hits_s
            if self.disk is not None and self.seating is None:
                misses_s += count * (self._reading(layer, uses, rate, self.disk.rate) - hits_s)
            elif rate > 0:
                misses_s += count * (self._missing(layer, uses, rate) - hits_s)
                misses_s += count * self._behind(layer, uses)
        return StepCost(
            dense_s=dense / speeds.kernels,
            attention_s=batch * self._attention(context),
            experts_s=experts_s,
            misses_s=misses_s,
        )

    def tokens_per_s(self, context: int, batch: int = 1) -> float:
        """Of all sequences together."""
        return batch / self.decode(context, batch).total_s

    def _attention(self, context: int) -> float:
        """Of one token. A key that many heads share is read once, and worked with for each."""
        speeds = self.speeds
        read_s = self.kv_read_bytes(context) / speeds.kernels
        return max(read_s, self.facts.kv_work(context) / speeds.flops)

    def kv_read_bytes(self, context: int) -> int:
        """Keys and values that one token looks back at."""
        return self.facts.kv_read_bytes(context, self.element_bytes)

    def prefill(self, tokens: int, start: int, how: Prefill) -> float:
        """Seconds of a prompt's chunk of `tokens` tokens behind `start` others."""
        return self._run(self._layer_times(tokens, how), self._dense_prefill(tokens, start))

    def _layer_times(self, tokens: int, how: Prefill) -> list[tuple[float, float]]:
        """Of each MoE layer: seconds of its experts, and of a copy that comes before them."""
        resident = self.seating is None or self.seating.placement == "resident"
        times: dict[Shape, tuple[float, float]] = {}
        for layer, shape in self._shapes():
            if shape not in times:
                if self.disk is not None and self.seating is None:
                    times[shape] = self._read_chunk(layer, tokens, self.disk.rate), 0.0
                elif resident:
                    times[shape] = self._compute(layer, tokens), 0.0
                elif how == "stream":
                    times[shape] = self._compute(layer, tokens), self._copy(layer)
                else:
                    facts = self.facts
                    routed = distinct(facts.experts[layer], facts.top_k[layer], tokens)
                    chunk_s = self._on_demand(layer, tokens) + self._behind(layer, routed)
                    times[shape] = chunk_s, 0.0
        return [times[shape] for _, shape in self._shapes()]

    def _run(self, layers: Sequence[tuple[float, float]], base_s: float) -> float:
        """While a layer computes the next is copied; the first copy has nothing to hide behind."""
        if not layers:
            return base_s
        each_s = base_s / self.facts.layers
        total = layers[0][1] + base_s - each_s * len(layers)
        for (compute_s, _), (_, copy_s) in pairwise(layers):
            total += max(each_s + compute_s, copy_s)
        return total + each_s + layers[-1][0]

    def choose_prefill(self, tokens: int) -> Prefill:
        """Whole layers, or only what is routed to: whichever is predicted to be sooner."""
        seating = self.seating
        if seating is None or seating.staging < 2 * max(self.facts.experts):
            return "on demand"
        streamed, routed = (self.prefill(tokens, 0, how) for how in ("stream", "on demand"))
        return "stream" if streamed < routed else "on demand"

    def stream_from(self, most: int) -> int | None:
        """Least tokens of a chunk at which streaming wins, up to `most`; None = nowhere seen.

        A long chunk may be sooner on demand again, where the CPU computes as fast as the device.
        """
        low, high = 0, 1
        while self.choose_prefill(high) != "stream":
            if high == most:
                return None
            low, high = high, min(2 * high, most)
        while high - low > 1:
            middle = (low + high) // 2
            if self.choose_prefill(middle) == "stream":
                high = middle
            else:
                low = middle
        return high

    def first_token(self, prompt: int, chunk: int) -> float:
        """Seconds from a prompt of so many tokens to its first answer, chunk by chunk."""
        full, rest = divmod(prompt, chunk)
        total = 0.0
        for tokens, starts in ((chunk, range(0, full * chunk, chunk)), (rest, (full * chunk,))):
            if tokens and starts:
                layers = self._layer_times(tokens, self.choose_prefill(tokens))
                total += sum(self._run(layers, self._dense_prefill(tokens, at)) for at in starts)
        return total

    def _shapes(self) -> list[tuple[int, Shape]]:
        """MoE layers, with all that their time depends on."""
        facts = self.facts
        shapes = zip(facts.experts, facts.top_k, facts.expert_bytes, strict=True)
        return [
            (layer, (*shape, facts.row_weights(layer)))
            for layer, shape in enumerate(shapes)
            if shape[0]
        ]

    def _alike(self) -> dict[int, int]:
        """One MoE layer of each shape, and how many have it."""
        first: dict[Shape, int] = {}
        counts: dict[int, int] = {}
        for layer, shape in self._shapes():
            like = first.setdefault(shape, layer)
            counts[like] = counts.get(like, 0) + 1
        return counts

    @property
    def _active_bytes(self) -> int:
        facts = self.facts
        return sum(k * row for k, row in zip(facts.top_k, facts.expert_bytes, strict=True))

    def _row(self, layer: int) -> tuple[ProfileRow, tuple[int, ...]]:
        kind = layer_kind(self.facts, layer)
        assert self.seating is not None
        assert kind is not None
        return self.seating.rows[kind], self.seating.quotas[kind]

    def _missing(self, layer: int, uses: int, rate: float) -> float:
        """Expected seconds of a layer: misses fall independently of each other."""
        row, table = self._row(layer)
        rule = from_table(table)
        nbytes = self.facts.expert_bytes[layer]
        total = 0.0
        for misses in range(uses + 1):
            odds = comb(uses, misses) * rate**misses * (1 - rate) ** (uses - misses)
            fills = rule(misses) if misses else 0
            times = branch_times(row, nbytes, misses, fills)
            here = uses - misses + fills
            device_s = times.fill_s + here * nbytes / self.speeds.kernels
            total += odds * max(device_s, times.host_s)
        return total

    def _reading(self, layer: int, uses: float, rate: float, disk: float) -> float:
        """A layer whose misses are read while its hits are computed; they are computed after it."""
        nbytes = self.facts.expert_bytes[layer]
        read_s = uses * rate * nbytes / disk
        hits_s = uses * (1 - rate) * nbytes / self.speeds.kernels
        return max(read_s, hits_s) + uses * rate * nbytes / self.speeds.kernels

    def _behind(self, layer: int, uses: float) -> float:
        """Reads of rows that neither the device nor the RAM behind it holds; they are taken to hold
        different ones. Nothing hides them.
        """
        if self.disk is None:
            return 0.0
        both = min(1.0, self.share + self.disk.rows / self.facts.rows)
        missing = uses * self._curve.at(both) if both < 1 else 0.0
        return missing * self.facts.expert_bytes[layer] / self.disk.rate

    def _read_chunk(self, layer: int, tokens: int, disk: float) -> float:
        """Rows of a prompt's chunk that RAM does not hold are computed while others are read."""
        facts = self.facts
        read = distinct(facts.experts[layer], facts.top_k[layer], tokens) * (1 - self.share)
        return max(read * facts.expert_bytes[layer] / disk, self._compute(layer, tokens))

    def _dense_prefill(self, tokens: int, start: int) -> float:
        """All but the routed experts."""
        facts, speeds = self.facts, self.speeds
        dense = facts.prefill_bytes - facts.experts_bytes
        seen = start + tokens / 2
        attention = tokens * sum(
            min(seen, need.window or seen) * (need.work or 4 * facts.hidden)
            for need in facts.state
            if isinstance(need, KvNeed)
        )
        work_s = (2 * tokens * facts.stem_weights + attention) / speeds.flops
        return max(dense / speeds.kernels, work_s)

    def _compute(self, layer: int, tokens: int) -> float:
        """The experts of a layer, all of them beside the kernels."""
        facts, speeds = self.facts, self.speeds
        nbytes, k = facts.expert_bytes[layer], facts.top_k[layer]
        read = distinct(facts.experts[layer], k, tokens) * nbytes
        work = 2 * tokens * k * facts.row_weights(layer)
        return max(read / speeds.kernels, work / speeds.flops)

    def _copy(self, layer: int) -> float:
        """A whole layer over the link, but for its resident rows."""
        row, _ = self._row(layer)
        rows = self.facts.experts[layer] * (1 - self.share)
        return row.fill_s + rows * self.facts.expert_bytes[layer] / row.link if rows else 0.0

    def _on_demand(self, layer: int, tokens: int) -> float:
        """Only what is routed to; resident rows are taken to be as likely as any others."""
        facts, speeds = self.facts, self.speeds
        seating = self.seating
        assert seating is not None
        row, table = self._row(layer)
        nbytes = facts.expert_bytes[layer]
        routed = distinct(facts.experts[layer], facts.top_k[layer], tokens)
        misses = routed * (1 - self.share)
        whole = max(1, round(misses))
        fills = misses * min(from_table(table)(whole), seating.staging) / whole
        host = misses - fills
        link = row.link_shared if host else row.link
        fill_s = row.fill_s + fills * nbytes / link if fills else 0.0
        work = 2 * tokens * facts.top_k[layer] * facts.row_weights(layer)
        here = (routed - host) / routed
        device_s = max((routed - host) * nbytes / speeds.kernels, here * work / speeds.flops)
        host_s = 0.0
        if host:
            rate = row.host_shared if fills else row.host
            work_s = work * host / routed / speeds.host_flops
            host_s = row.handoff_s + max(host * nbytes / rate, work_s)
        return max(fill_s + device_s, host_s)


def distinct(experts: int, top_k: int, tokens: int) -> float:
    """Different experts that `tokens` tokens are expected to use, were all as likely:
    E * (1 - (1 - k/E)^T).
    """
    return experts * (1 - (1 - top_k / experts) ** tokens)
