"""Decode steps are captured once per number of sequences and replayed without Python.

A replay gives the bits of the plain forward pass: it makes the same native calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.device.device import Device, Graph
from headrace.engine.logits import Logits
from headrace.models.state import Batch, Experts, State
from headrace.models.transformer import Transformer

log = logging.getLogger(__name__)

# A captured step keeps its activations: about 4 MB per sequence with 48 layers of width 2048. With
# more sequences a step reads so many more weights that what Python costs no longer shows.
MOST_SEQUENCES = 4


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph, the batch whose buffers it reads and the logits it writes."""

    graph: Graph
    batch: Batch
    logits: Logits


class Graphs:
    """The forward pass, with captured steps where one token of each sequence is computed.

    `experts` runs the routed experts; a benchmark puts routing of its own before them.
    """

    def __init__(
        self,
        transformer: Transformer,
        experts: Experts,
        device: Device,
        *,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`ready`: experts lie where they will stay; before that nothing is captured."""
        self._ready = ready
        self._transformer, self.experts, self._device = transformer, experts, device
        self._captured: dict[int, Captured] = {}
        self._refused = ""

    @property
    def sizes(self) -> list[int]:
        """The numbers of sequences for which a step is captured."""
        return sorted(self._captured)

    def drop(self) -> None:
        """Memory has moved: steps are captured again when next needed."""
        self._captured.clear()

    def forward(self, batch: Batch, state: State) -> Logits:
        """Logits, which hold until the next call. A step is known again by its very batch."""
        known = self._captured.get(batch.spans.sequences)
        if known is not None and known.batch is batch:
            known.graph.replay()
            return known.logits
        n = int(batch.tokens_T.shape[0])
        decode = n == batch.spans.sequences == batch.rows_N.shape[0]
        if not decode or n > MOST_SEQUENCES or self._refused or not self._ready():
            return self.plain(batch, state, self.experts)
        with torch.inference_mode():
            return self._capture(n, batch, state)

    def plain(self, batch: Batch, state: State, experts: Experts) -> Logits:
        """Never captured or replayed, so that `experts` is called in every layer."""
        with torch.inference_mode():
            logits_NV = self._transformer.forward(batch, state, experts)
            return Logits(logits_NV, self._transformer.best(logits_NV))

    def _capture(self, n: int, batch: Batch, state: State) -> Logits:
        self._transformer.prepare(n)
        graph = self._device.graph()
        if graph is None:
            self._refused = "the device captures nothing"
            return self.plain(batch, state, self.experts)
        with graph.recording():
            logits_NV = self._transformer.forward(batch, state, self.experts)
            best_N = self._transformer.best(logits_NV)
        logits = Logits(logits_NV, best_N)
        if graph.foreign:
            self._refused = graph.foreign
            log.info("decode steps of this model are not captured: %s", graph.foreign)
        else:
            self._captured[n] = Captured(graph, batch, logits)
        return logits
