"""Decode steps are captured once per number of sequences and replayed without Python.

A replay gives the bits of the plain forward pass: it makes the same native calls.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from torch import Tensor

from headrace.device.cpu import CpuDevice
from headrace.device.tape import CpuGraph, addresses
from headrace.models.state import Batch, Experts, State
from headrace.models.transformer import Entry, Transformer

log = logging.getLogger(__name__)

# A captured step keeps its activations: about 4 MB per sequence with 48 layers of width 2048. With
# more sequences a step reads so many more weights that what Python costs no longer shows.
MOST_SEQUENCES = 4


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph, where it reads its inputs and where its logits are."""

    graph: CpuGraph
    entry: Entry
    inputs: tuple[int, ...]
    logits_ND: Tensor


class Graphs:
    """The forward pass, with captured steps where one token of each sequence is computed."""

    def __init__(self, transformer: Transformer, experts: Experts, device: CpuDevice) -> None:
        self._transformer, self._experts, self._device = transformer, experts, device
        self._captured: dict[int, Captured] = {}
        self._refused = ""

    @property
    def sizes(self) -> list[int]:
        """The numbers of sequences for which a step is captured."""
        return sorted(self._captured)

    def forward(self, batch: Batch, state: State) -> Tensor:
        """Logits, which hold until the next call."""
        n = int(batch.tokens_T.shape[0])
        decode = n == batch.spans.sequences == batch.rows_N.shape[0]
        if not decode or n > MOST_SEQUENCES or self._refused:
            return self._transformer.forward(batch, state, self._experts)
        entry = self._transformer.enter(batch)
        known = self._captured.get(n)
        if known is None or known.inputs != _inputs(batch):
            return self._capture(n, entry, batch, state)
        known.entry.x_TD.copy_(entry.x_TD)
        for rope, (cos, sin) in known.entry.angles.items():
            cos.copy_(entry.angles[rope][0])
            sin.copy_(entry.angles[rope][1])
        known.graph.replay()
        return known.logits_ND

    def _capture(self, n: int, entry: Entry, batch: Batch, state: State) -> Tensor:
        graph = self._device.graph()
        with graph.recording():
            self._transformer.run_layers(entry, batch.spans, state, self._experts)
            logits_ND = self._transformer.logits(entry.x_TD)
        if graph.foreign:
            self._refused = graph.foreign
            log.info("decode steps of this model are not captured: %s", graph.foreign)
        else:
            self._captured[n] = Captured(graph, entry, _inputs(batch), logits_ND)
        return logits_ND


def _inputs(batch: Batch) -> tuple[int, ...]:
    spans = batch.spans
    return (
        *addresses(spans.offsets_S1, spans.contexts_S, spans.blocks_SB, spans.kv_slots_T),
        *addresses(spans.states_S),
        int(spans.blocks_SB.shape[1]),
    )
