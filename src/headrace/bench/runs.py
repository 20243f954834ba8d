"""An engine whose device the benchmark keeps hold of, and what its steps cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace import _native
from headrace.bench.checkpoint import Progress, Shape
from headrace.bench.quantised import random_checkpoint
from headrace.config import EngineConfig
from headrace.device.cpu import CpuDevice
from headrace.engine.build import start_device
from headrace.engine.engine import Engine
from headrace.engine.opening import open_engine
from headrace.engine.request import Request, Sampling
from headrace.models.source import ModelSource
from headrace.planning.facts import ModelFacts

# Far beyond any last-level cache that a core can fill alone, small beside the weights.
BANDWIDTH_BYTES = 256 << 20
BANDWIDTH_SECONDS = 0.5


@dataclass(slots=True)
class Bench:
    """A loaded model under test, and the read bandwidth of this machine beside it."""

    engine: Engine
    device: CpuDevice
    source: ModelSource
    name: str
    bandwidths: list[float] = field(default_factory=list)  # bytes/s, as measured so far

    def measure_bandwidth(self, seconds: float = BANDWIDTH_SECONDS) -> None:
        self.bandwidths.append(
            _native.measure_read_bandwidth(self.device.pool, BANDWIDTH_BYTES, seconds)
        )

    @property
    def facts(self) -> ModelFacts:
        return self.source.facts

    @property
    def bandwidth(self) -> float:
        return statistics.median(self.bandwidths)

    def prompt(self, tokens: int) -> tuple[int, ...]:
        """Token ids that spread over the vocabulary, so that routing spreads over the experts."""
        return tuple((7919 * i + 13) % (self.facts.vocab - 3) + 3 for i in range(tokens))

    def submit(self, prompt_tokens: int, answer_tokens: int) -> None:
        sampling = Sampling(temperature=0, max_tokens=answer_tokens, ignore_eos=True)
        self.engine.submit(Request(self.prompt(prompt_tokens), sampling))

    def timed_step(self) -> tuple[float, float]:
        """Seconds of one step, and those of them outside kernels."""
        busy, start = self.device.pool.busy_ns(), time.perf_counter()
        self.engine.step()
        wall = time.perf_counter() - start
        return wall, wall - (self.device.pool.busy_ns() - busy) / 1e9


@contextmanager
def opened(
    *,
    model: Path | None,
    shape: Shape,
    kind: str | None = None,
    home: Path,
    threads: int | None,
    step_tokens: int,
    progress: Progress,
) -> Iterator[Bench]:
    """The model, or a random checkpoint of `shape` in the number format `kind`, plain floats where
    None, kept under `home` for the next time.
    """
    path = model or random_checkpoint(home / "bench", shape, kind, progress)
    config = EngineConfig.of(
        threads=threads,
        context=4096 if step_tokens < 4096 else step_tokens + 64,
        **{"schedule.max_sequences": 1, "schedule.step_tokens": step_tokens},
        # Every run has the same prompt, and shall compute it.
        **{"memory.prefix_cache": "off"},
    )
    opening = open_engine(path, config, home=home)
    device = start_device(opening)
    assert isinstance(device, CpuDevice)
    engine = Engine.start(
        opening, lambda done, total: progress(done, total, "reading weights"), device=device
    )
    try:
        yield Bench(engine, device, opening.source, path.name)
    finally:
        engine.close()
