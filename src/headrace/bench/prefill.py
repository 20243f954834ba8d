"""Prefill of one prompt, against the bytes it must read and the operations it must do."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from headrace.bench.checkpoint import Progress, Shape
from headrace.bench.report import fingerprint, peak_rss_bytes, spread
from headrace.bench.runs import Bench, opened
from headrace.planning.facts import ModelFacts

PRODUCT_SIDE = 2048


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
    """Tokens/s of a prompt in one step, and how many times the two lower bounds it takes.

    Bytes: all weights but the embedding, once. Operations: 2 per weight and token, for the dense
    weights and the chosen experts, and for the output head once. The rate is that of one large
    torch product in BF16, and in float32 beside it, both in this run.
    """
    with opened(
        model=model,
        shape=shape,
        kind=kind,
        home=home,
        threads=threads,
        step_tokens=tokens,
        progress=progress,
    ) as bench:
        _prefill(bench, tokens)
        peak = peak_rss_bytes()
        walls, products16, products32 = [], [], []
        for i in range(repeats):
            progress(i, repeats, "prefilling")
            bench.measure_bandwidth()
            products16.append(_product_rate(torch.bfloat16, bench.device.pool.threads))
            products32.append(_product_rate(torch.float32, bench.device.pool.threads))
            walls.append(_prefill(bench, tokens))
        bench.measure_bandwidth()
        facts = bench.facts
        operations = _operations(facts, tokens)
        wall, product16 = statistics.median(walls), statistics.median(products16)
        by_bytes = facts.prefill_bytes / bench.bandwidth
        return {
            "bench": "prefill",
            "model": bench.name,
            "tokens_per_s": spread([tokens / w for w in walls]),
            "seconds": spread(walls),
            "bytes": facts.prefill_bytes,
            "read_bandwidth": spread(bench.bandwidths),
            "bytes_bound_s": by_bytes,
            "operations": operations,
            "flops": spread([operations / w for w in walls]),
            "torch_bf16_flops": spread(products16),
            "torch_f32_flops": spread(products32),
            "operations_bound_s": operations / product16,
            "times_the_larger_bound": wall / max(by_bytes, operations / product16),
            "share_of_torch_f32": operations / wall / statistics.median(products32),
            "peak_rss_over_weights": peak - facts.total_bytes,
            "tokens": tokens,
            "repeats": repeats,
            "machine": fingerprint(threads=bench.device.pool.threads, isa=bench.device.pool.isa),
        }


def _operations(facts: ModelFacts, tokens: int) -> int:
    """Two for each weight and token; the output head meets the last token alone."""
    head = facts.vocab * facts.hidden
    return 2 * (tokens * (facts.active_weights - head) + head)


def _prefill(bench: Bench, tokens: int) -> float:
    bench.submit(tokens, 1)
    wall, _ = bench.timed_step()
    while not bench.engine.idle:
        bench.engine.step()
    return wall


def _product_rate(dtype: torch.dtype, threads: int) -> float:
    """Operations/s of one square product; the better of two, after a warm-up."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = (torch.randn(PRODUCT_SIDE, PRODUCT_SIDE).to(dtype) for _ in range(2))
    b = b.t()  # rows of weights, as a linear layer has them: torch's fast case in BF16
    torch.mm(a, b)
    best = float("inf")
    for _ in range(2):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    torch.set_num_threads(before)
    return 2 * PRODUCT_SIDE**3 / best
