"""Step -> tensors -> forward -> logits.

Buffers are made once and never move; a prompt costs no Python per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headrace.cache.blocks import Table
from headrace.cache.lease import Copies
from headrace.engine.crossing import Caches, Crossing
from headrace.engine.logits import Logits
from headrace.engine.pools import clear_states
from headrace.engine.step import Span, Step
from headrace.engine.tables import BlockTables
from headrace.models.state import Batch, State
from headrace.ops.spans import Runs, Spans

Forward = Callable[[Batch, State], Logits]


class Runner:
    """Runs steps of at most `step_tokens` tokens and `sequences` spans; used by one thread."""

    def __init__(
        self,
        forward: Forward,
        caches: Caches,
        *,
        step_tokens: int,
        sequences: int,
        block_tokens: int,
        sequence_blocks: int,
        windows: Sequence[int] = (),
        crossing: Crossing | None = None,
    ) -> None:
        """`windows`: sizes, of the layers that have one; `crossing`: None = no host tier."""
        self._forward = forward
        self._caches = caches
        self._crossing = crossing or Crossing(caches, block_tokens)
        self._block_tokens = block_tokens
        self._tokens = np.zeros(step_tokens, dtype=np.int64)
        self._positions = np.zeros(step_tokens, dtype=np.int64)
        self._offsets = np.zeros(sequences + 1, dtype=np.int32)
        self._contexts = np.zeros(sequences, dtype=np.int32)
        self._states = np.zeros(sequences, dtype=np.int32)
        self._tables, *others = (
            BlockTables(step_tokens, sequences, sequence_blocks, size=block_tokens)
            for _ in range(1 + len(windows))
        )
        self._windows = dict(zip(windows, others, strict=True))
        self._decode: dict[int, Batch] = {}  # by sequences

    def run(self, step: Step, *, every: bool = False) -> Logits:
        """Of each span's last token where it has `sample`, in order; they hold until the next call.

        With `every`, of each token of the step.
        """
        batch = self._batch(step, every=every)
        state = self._caches.state
        begun = [s.state for s in step.spans if s.start == 0 <= s.state]
        if begun:
            clear_states(state, begun)
        return self._forward(batch, state)

    def copy(self, copies: Copies) -> None:
        """Blocks and states, between two steps."""
        if copies:
            self._crossing.copy(copies)

    def _batch(self, step: Step, *, every: bool) -> Batch:
        spans = step.spans
        self._tables.fill(spans, [Table(0, span.blocks) for span in spans])
        for i, table in enumerate(self._windows.values()):
            table.fill(spans, [span.windows[i] for span in spans])
        wanted: list[int] = []
        at = 0
        for i, span in enumerate(spans):
            self._fill(span, at)
            at += span.length
            self._offsets[i + 1] = at
            self._contexts[i] = span.start
            self._states[i] = span.state
            if span.sample:
                wanted.append(at - 1)
        n = len(spans)
        if len(wanted) == at:  # one token of each: its views are always the same
            batch = self._decode.get(n)
            if batch is None:
                batch = self._decode[n] = self._views(n, at, torch.arange(at))
            return batch
        rows_N = torch.arange(at) if every else torch.tensor(wanted, dtype=torch.int64)
        return self._views(n, at, rows_N, _runs(spans))

    def _views(self, n: int, at: int, rows_N: Tensor, runs: Runs | None = None) -> Batch:
        """The buffers as far as `n` spans with `at` tokens fill them."""
        blocks_SB, kv_slots_T = self._tables.views(n, at)
        spans = Spans(
            offsets_S1=torch.from_numpy(self._offsets[: n + 1]),
            contexts_S=torch.from_numpy(self._contexts[:n]),
            blocks_SB=blocks_SB,
            kv_slots_T=kv_slots_T,
            states_S=torch.from_numpy(self._states[:n]),
            block_size=self._block_tokens,
            runs=runs,
        )
        return Batch(
            tokens_T=torch.from_numpy(self._tokens[:at]),
            positions_T=torch.from_numpy(self._positions[:at]),
            rows_N=rows_N,
            spans=spans,
            windows={
                window: replace(spans, blocks_SB=blocks_SB, kv_slots_T=kv_slots_T)
                for window, table in self._windows.items()
                for blocks_SB, kv_slots_T in [table.views(n, at)]
            },
        )

    def _fill(self, span: Span, at: int) -> None:
        """Tokens and positions of one span, from `at` on."""
        start = span.start
        if len(span.tokens) == 1:
            self._tokens[at] = span.tokens[0]
            self._positions[at] = start
            return
        end = at + span.length
        self._tokens[at:end] = span.tokens
        self._positions[at:end] = np.arange(start, start + span.length)


def _runs(spans: Sequence[Span]) -> Runs | None:
    """The runs between the places where states are kept; None where none is."""
    if not any(span.cuts for span in spans):
        return None
    offsets, firsts, slots, keeps = [0], [0], list[int](), list[int]()
    for span in spans:
        first = offsets[-1] - span.start
        ends = [(first + cut.position, cut.slot) for cut in span.cuts]
        end = offsets[-1] + span.length
        if not ends or ends[-1][0] < end:
            ends.append((end, -1))
        offsets += [at for at, _ in ends]
        keeps += [slot for _, slot in ends]
        slots += [span.state] * len(ends)
        firsts.append(len(slots))
    return Runs(*(torch.tensor(x, dtype=torch.int32) for x in (offsets, firsts, slots, keeps)))
