"""Decoding one stream, against what the memory of this machine could deliver in the same run."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from headrace.bench.checkpoint import Progress, Shape
from headrace.bench.report import fingerprint, peak_rss_bytes, spread
from headrace.bench.runs import Bench, opened

PROMPT_TOKENS = 16


def run(
    *,
    model: Path | None,
    shape: Shape,
    tokens: int,
    repeats: int,
    threads: int | None,
    home: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Tokens/s, bytes/s and their ratio to the read bandwidth; each figure with its spread.

    A step must read every dense weight, the output head, the chosen experts' rows and the KV so
    far; of the embedding only a row.
    """
    with opened(
        model=model, shape=shape, home=home, threads=threads, step_tokens=512, progress=progress
    ) as bench:
        _decode(bench, 4)  # the first touch of code and caches
        peak = peak_rss_bytes()
        walls, outside = [], []
        for i in range(repeats):
            progress(i, repeats, "decoding")
            bench.measure_bandwidth()
            wall, other = _decode(bench, tokens)
            walls.append(wall)
            outside.append(other)
        bench.measure_bandwidth()
        facts = bench.facts
        element = 4 if bench.engine.plan.exact else 2
        context = PROMPT_TOKENS + tokens // 2
        read = facts.decode_bytes + context * facts.kv_bytes_per_token(element)
        rates = [read / wall for wall in walls]
        return {
            "bench": "decode",
            "model": str(model.name) if model else shape.name(),
            "tokens_per_s": spread([1 / wall for wall in walls]),
            "step_bytes": read,
            "bytes_per_s": spread(rates),
            "read_bandwidth": spread(bench.bandwidths),
            "share_of_bandwidth": statistics.median(rates) / bench.bandwidth,
            "step_ms": spread([1e3 * wall for wall in walls]),
            "outside_kernels_ms": spread([1e3 * other for other in outside]),
            "weight_bytes": facts.total_bytes,
            "peak_rss_over_weights": peak - facts.total_bytes,
            "tokens": tokens,
            "repeats": repeats,
            "machine": fingerprint(threads=bench.device.pool.threads, isa=bench.device.pool.isa),
        }


def _decode(bench: Bench, tokens: int) -> tuple[float, float]:
    """Median seconds of a decode step, in all and outside kernels."""
    bench.submit(PROMPT_TOKENS, tokens + 1)
    bench.engine.step()  # the prompt
    steps = [bench.timed_step() for _ in range(tokens)]
    while not bench.engine.idle:
        bench.engine.step()
    return statistics.median(w for w, _ in steps), statistics.median(o for _, o in steps)
