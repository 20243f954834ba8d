"""Decoding with a part of the experts in RAM and all of them on disk, under skewed routing.

Routing is drawn, not computed: a random model has no habits. Experts of a layer are used by
rank^-skew, in an order of its own for each layer, and the same in every run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bench.checkpoint import Progress, Shape
from headrace.bench.quantised import random_checkpoint
from headrace.bench.report import fingerprint, peak_rss_bytes, spread
from headrace.config import EngineConfig
from headrace.device.cpu import CpuDevice
from headrace.engine.build import build, start_device
from headrace.engine.engine import Engine
from headrace.engine.opening import open_engine
from headrace.engine.request import Request, Sampling
from headrace.experts.disk import FromDisk
from headrace.models.state import Experts
from headrace.ops.table import Routing

PROMPT_TOKENS = 16


class Drawn:
    """Experts with drawn ids in place of those that the router chose; weights stay."""

    def __init__(self, experts: Experts, counts: tuple[int, ...], skew: float) -> None:
        self._experts = experts
        self._random = np.random.Generator(np.random.SFC64(1))
        self._odds = [
            np.log(self._random.permutation(np.arange(1, count + 1, dtype=np.float64) ** -skew))
            for count in counts
        ]

    def __call__(self, layer: int, x_TD: Tensor, routing: Routing) -> Tensor:
        tokens, top_k = routing.ids_TX.shape
        odds = self._odds[layer]
        # The greatest of log odds + Gumbel noise: draws without replacement.
        keys = odds + self._random.gumbel(size=(tokens, len(odds)))
        ids = np.argsort(-keys, axis=1)[:, :top_k].astype(np.int32)
        return self._experts(layer, x_TD, Routing(torch.from_numpy(ids), routing.weights_TX))


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
    ram: str = "50%",
    skew: float = 1.0,
) -> dict[str, Any]:
    """Tokens/s with `ram` for experts and with all in memory; misses, bytes read, and the rate of
    the disk by itself.
    """
    path = model or random_checkpoint(home / "bench", shape, kind, progress)
    some = _runs(path, tokens, repeats, threads, skew, progress, {"experts.ram": ram})
    whole = _runs(path, tokens, repeats, threads, skew, progress, {})
    return {
        "bench": "tier",
        "model": path.name,
        "ram": ram,
        "skew": skew,
        **some,
        "all_in_memory_tokens_per_s": whole["tokens_per_s"],
        "tokens": tokens,
        "repeats": repeats,
    }


def _runs(
    path: Path,
    tokens: int,
    repeats: int,
    threads: int | None,
    skew: float,
    progress: Progress,
    keys: dict[str, str],
) -> dict[str, Any]:
    """One engine; the first run fills the cache and does not count."""
    config = EngineConfig.of(
        threads=threads, context=4096, **{"memory.prefix_cache": "off", **keys}
    )
    opening = open_engine(path, config)
    device = start_device(opening)
    assert isinstance(device, CpuDevice)
    built = build(opening, device, lambda done, total: progress(done, total, "reading weights"))
    facts = opening.source.facts
    built.graphs.experts = Drawn(built.graphs.experts, facts.experts, skew)
    engine = Engine(opening.plan, built.runner, opening.limits, on_close=built.close, built=built)
    try:
        rates, read, missed = [], [], []
        for i in range(repeats + 1):
            progress(i, repeats + 1, "decoding")
            before = _counts(built.placement)
            seconds = _decode(engine, tokens)
            if i:
                uses, misses, nbytes = (
                    b - a for a, b in zip(before, _counts(built.placement), strict=True)
                )
                rates.append(tokens / seconds)
                read.append(nbytes / seconds)
                missed.append(misses / max(1, uses))
        made: dict[str, Any] = {
            "tokens_per_s": spread(rates),
            "machine": fingerprint(threads=device.pool.threads, isa=device.pool.isa),
        }
        if isinstance(built.placement, FromDisk):
            held = built.placement.tier.table.capacity * facts.slot_bytes
            made |= {
                "miss_rate": spread(missed),
                "read_bytes_per_s": spread(read),
                "disk_bytes_per_s": built.placement.tier.reader.way.rate,
                "disk_threads": built.placement.tier.reader.way.threads,
                "disk_piece_bytes": built.placement.tier.reader.way.piece_bytes,
                "ram_bytes": held,
                "experts_bytes": facts.experts_bytes,
                "peak_rss_bytes": peak_rss_bytes(),
                "foresight": built.placement.status().get("foresight"),
            }
        return made
    finally:
        engine.close()


def _counts(placement: object) -> tuple[int, int, int]:
    """Uses, misses, bytes read so far."""
    if not isinstance(placement, FromDisk):
        return 0, 0, 0
    return placement.uses, placement.misses, placement.tier.reader.queue.bytes


def _decode(engine: Engine, tokens: int) -> float:
    """Seconds of so many steps behind a short prompt."""
    prompt = tuple((7919 * i + 13) % (engine.vocab - 3) + 3 for i in range(PROMPT_TOKENS))
    sampling = Sampling(temperature=0, max_tokens=tokens + 1, ignore_eos=True)
    engine.submit(Request(prompt, sampling))
    engine.step()  # the prompt
    began = time.perf_counter()
    while not engine.idle:
        engine.step()
    return time.perf_counter() - began
