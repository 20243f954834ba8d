"""The forward pass with what goes around it: the placement hears of each step, the recorder of its
routing.
"""

from __future__ import annotations

from headrace.engine.graphs import Graphs
from headrace.engine.logits import Logits
from headrace.engine.recorder import Recorder
from headrace.experts.placement import Placement
from headrace.models.state import Batch, State


class Forward:
    """Captured steps where there are any; plain ones for prompts and while routing is recorded."""

    def __init__(self, placement: Placement, graphs: Graphs, recorder: Recorder) -> None:
        self.placement, self.graphs = placement, graphs
        self._recorder = recorder
        self._listened = recorder.experts(placement)

    def __call__(self, batch: Batch, state: State) -> Logits:
        """Logits, which hold until the next call."""
        tokens, spans = len(batch.tokens_T), batch.spans
        self.placement.begin(tokens, prefill=tokens > spans.sequences)
        if self._recorder.recording:
            logits = self.graphs.plain(batch, state, self._listened)
        else:
            logits = self.graphs.forward(batch, state)
        self.placement.finish()
        return logits
