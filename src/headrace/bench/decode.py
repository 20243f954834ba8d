"""Decoding one stream, against what the memory of this machine could deliver in the same run."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from headrace.bench.checkpoint import Progress, Shape
from headrace.bench.report import fingerprint, peak_rss_bytes, spread
from headrace.bench.roofline import Roofline, step_bytes
from headrace.bench.runs import Bench, opened

PROMPT_TOKENS = 16
PROBE_STEPS, PROBE_SECONDS = 8, 0.1


def run(
    *,
    model: Path | None,
    shape: Shape,
    kind: str | None = None,
    tokens: int,
    repeats: int,
    threads: int | None,
    home: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Tokens/s, bytes/s and their ratio to the read bandwidth, and to the roofline: the lower of
    bandwidth and what the kernels reach in cache; each figure with its spread.

    `kind`: of a random checkpoint, see `opened`.
    A step must read every dense weight, the output head, the chosen experts' rows and the KV so
    far; of the embedding only a row.
    """
    with opened(
        model=model,
        shape=shape,
        kind=kind,
        home=home,
        threads=threads,
        step_tokens=512,
        progress=progress,
    ) as bench:
        _decode(bench, 4, probe=False)  # the first touch of code and caches
        peak = peak_rss_bytes()
        roofline = Roofline(step_bytes(bench.source), bench.facts.hidden)
        walls, outside, means, bandwidths = [], [], [], []
        for i in range(repeats):
            progress(i, repeats, "decoding")
            bench.bandwidths.clear()
            roofline.measure(bench.device.pool)
            wall, other, mean = _decode(bench, tokens)
            walls.append(wall)
            outside.append(other)
            means.append(mean)
            bandwidths.append(bench.bandwidth)
        facts = bench.facts
        element = 4 if bench.engine.plan.exact else 2
        context = PROMPT_TOKENS + tokens // 2
        cached = facts.kv_read_bytes(context, element)
        read = facts.decode_bytes + cached
        return {
            "bench": "decode",
            "model": bench.name,
            "tokens_per_s": spread([1 / wall for wall in walls]),
            "mean_tokens_per_s": spread([1 / mean for mean in means]),
            **_against_limits(walls, bandwidths, roofline, read, cached),
            "step_ms": spread([1e3 * wall for wall in walls]),
            "outside_kernels_ms": spread([1e3 * other for other in outside]),
            "weight_bytes": facts.total_bytes,
            "peak_rss_over_weights": peak - facts.total_bytes,
            "tokens": tokens,
            "repeats": repeats,
            "machine": fingerprint(threads=bench.device.pool.threads, isa=bench.device.pool.isa),
        }


def _against_limits(
    walls: list[float], bandwidths: list[float], roofline: Roofline, read: int, cached: int
) -> dict[str, Any]:
    """`read`: bytes of a step, of which `cached` are keys and values."""
    pairs = list(zip(walls, bandwidths, strict=True))
    return {
        "step_bytes": read,
        "bytes_per_s": spread([read / wall for wall in walls]),
        "read_bandwidth": spread(bandwidths),
        "share_of_bandwidth": spread([read / wall / bandwidth for wall, bandwidth in pairs]),
        "share_of_roofline": spread(
            [roofline.seconds(bandwidth, cached) / wall for wall, bandwidth in pairs]
        ),
        "formats": roofline.report(),
    }


def _decode(bench: Bench, tokens: int, *, probe: bool = True) -> tuple[float, float, float]:
    """Seconds of a decode step: the median in all and outside kernels, and the mean in all.

    Bandwidth is measured between the steps: on a shared machine it changes within seconds.
    """
    bench.submit(PROMPT_TOKENS, tokens + 1)
    bench.engine.step()  # the prompt
    steps = []
    for i in range(tokens):
        if probe and i % PROBE_STEPS == 0:
            bench.measure_bandwidth(PROBE_SECONDS)
        steps.append(bench.timed_step())
    while not bench.engine.idle:
        bench.engine.step()
    walls, outside = ([step[i] for step in steps] for i in range(2))
    return statistics.median(walls), statistics.median(outside), statistics.fmean(walls)
