"""A model whose next token depends on every earlier one, as block table and state slot give them.

Its KV pools hold token ids and its recurrent state a running hash. `truth` computes the same from
the plain token list, so a wrong block, slot, position or a stale state gives another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from headrace.engine.engine import Engine
from headrace.engine.logits import Logits
from headrace.engine.opening import limits_of
from headrace.engine.request import Request, Sampling
from headrace.engine.runner import Runner
from headrace.engine.sampler import Drawer
from headrace.models.state import Batch, KvPool, LayerState, RecurrentPool
from headrace.ops.runs import walk
from headrace.ops.spans import Spans
from headrace.planning.budget import CacheNeed, MemoryBudget
from headrace.planning.resolve import Choice, ExecutionPlan
from headrace.planning.windows import Window, blocks_each

VOCAB = 97
END = 0
PRIME = 65_521


def fold(h: int, token: int) -> int:
    return (h * 31 + token + 7) % PRIME


def logits_after(history: Sequence[int], state_hash: int) -> np.ndarray:
    h = 1
    for position, token in enumerate(history):
        h = (h * 131 + token * 17 + position) % PRIME
    rng = np.random.default_rng((h, state_hash))
    return (rng.standard_normal(VOCAB) * 3).astype(np.float32)


def state_of(history: Sequence[int], *, recurrent: bool) -> int:
    h = 0
    for token in history if recurrent else ():
        h = fold(h, token)
    return h


class FakeModel:
    """`fail_when` makes a forward with that token in it raise, `fail_always` any."""

    def __init__(self, slots: int, state_slots: int, windows: dict[int, int] | None = None) -> None:
        """`windows`: KV slots by the tokens looked back at."""
        nan = float("nan")
        self.windows = [
            KvPool(torch.full((n, 1, 1), nan), torch.full((n, 1, 1), nan), window)
            for window, n in (windows or {}).items()
        ]
        self.state: list[LayerState] = [
            KvPool(torch.full((slots, 1, 1), nan), torch.full((slots, 1, 1), nan))
        ]
        if state_slots:
            self.state.append(
                RecurrentPool(
                    torch.full((state_slots, 1, 1, 1), nan), torch.full((state_slots, 1, 1), nan)
                )
            )
        self.state += self.windows
        self.fail_when: int | None = None
        self.fail_always = False
        self.batches: list[tuple[int, int]] = []  # tokens, sequences

    def forward(self, batch: Batch, state: Sequence[LayerState]) -> Logits:
        spans = batch.spans
        self.batches.append((len(batch.tokens_T), spans.sequences))
        hurts = self.fail_when is not None and self.fail_when in batch.tokens_T.tolist()
        if hurts or self.fail_always:
            raise RuntimeError("this token hurts")
        kv = state[0]
        assert isinstance(kv, KvPool)
        self._whole = kv
        size, wanted = spans.block_size, set(batch.rows_N.tolist())
        self._look_at_blocks(batch)
        kept = {end: keep for _, end, _, keep in walk(spans) if keep >= 0}
        rows: dict[int, np.ndarray] = {}
        for s in range(spans.sequences):
            first, last = int(spans.offsets_S1[s]), int(spans.offsets_S1[s + 1])
            for t in range(first, last):
                position = int(spans.contexts_S[s]) + t - first
                assert int(batch.positions_T[t]) == position
                kv.keys[spans.kv_slots_T[t], 0, 0] = float(batch.tokens_T[t])
                self._look_back(batch, s, t, position)
                h = self._recur(state, int(spans.states_S[s]), int(batch.tokens_T[t]))
                pool = state[1] if t + 1 in kept else None
                if isinstance(pool, RecurrentPool):
                    for tensor in pool.tensors:
                        tensor[kept[t + 1]] = tensor[int(spans.states_S[s])]
                if t in wanted:
                    at = torch.arange(position + 1)
                    slots = spans.blocks_SB[s].long()[at // size] * size + at % size
                    history = [int(v) for v in kv.keys[slots, 0, 0]]  # int(NaN) raises
                    rows[t] = logits_after(history, h)
        picked = [rows[t] for t in batch.rows_N.tolist()]
        rows_NV = np.array(picked, dtype=np.float32).reshape(len(picked), VOCAB)
        return Logits(torch.from_numpy(rows_NV), torch.from_numpy(rows_NV.argmax(axis=1)))

    def _look_back(self, batch: Batch, s: int, t: int, position: int) -> None:
        """In each window stands what stands in the blocks of the whole context."""
        for pool in self.windows:
            spans, size = batch.spans_of(pool), batch.spans.block_size
            pool.keys[spans.kv_slots_T[t], 0, 0] = float(batch.tokens_T[t])
            assert pool.window is not None
            at = torch.arange(max(0, position + 1 - pool.window), position + 1)
            seen = [
                tensor[table.blocks_SB[s].long()[at // size] * size + at % size, 0, 0].tolist()
                for tensor, table in ((pool.keys, spans), (self._whole.keys, batch.spans))
            ]
            assert seen[0] == seen[1]  # NaN equals nothing

    def _look_at_blocks(self, batch: Batch) -> None:
        """What a sequence writes, no other one reads."""
        for spans in (batch.spans, *batch.windows.values()):
            self._look_at(spans)

    def _look_at(self, spans: Spans) -> None:
        size = spans.block_size
        rows = [[b for b in row if b] for row in spans.blocks_SB.tolist()]
        assert all(len(row) == len(set(row)) for row in rows)
        for s in range(spans.sequences):
            first, last = int(spans.offsets_S1[s]), int(spans.offsets_S1[s + 1])
            written = set((spans.kv_slots_T[first:last] // size).tolist())
            assert written <= set(rows[s])
            others = {b for i, row in enumerate(rows) if i != s for b in row}
            assert not written & others, "a sequence writes into a block of another one"

    def _recur(self, state: Sequence[LayerState], slot: int, token: int) -> int:
        pool = state[1] if len(state) > 1 else None
        if not isinstance(pool, RecurrentPool):
            return 0
        assert float(pool.conv[slot, 0, 0]) == 0.0
        h = fold(int(pool.matrix[slot, 0, 0, 0]), token)
        pool.matrix[slot, 0, 0, 0] = float(h)
        return h


def make_engine(
    *,
    blocks: int = 64,
    block_tokens: int = 4,
    context: int | None = None,
    recurrent: bool = False,
    step_tokens: int = 16,
    sequences: int = 8,
    max_queued: int = 64,
    windows: tuple[int, ...] = (),
) -> tuple[Engine, FakeModel]:
    def chosen(value: int) -> Choice[int]:
        return Choice(value, "test")

    states = sequences if recurrent or windows else 0
    kinds = tuple(
        Window(
            w, blocks_each(w, block_tokens, blocks * block_tokens), -(-step_tokens // block_tokens)
        )
        for w in windows
    )
    memory = MemoryBudget(0, 0, 0, 0, 0, states, blocks, block_tokens)
    plan = ExecutionPlan(
        device=Choice("cpu", "test"),
        dtype=Choice("float32", "test"),
        threads=chosen(1),
        context=chosen(context or blocks * block_tokens),
        sequences=chosen(sequences),
        state_slots=chosen(states),
        kv_blocks=chosen(blocks),
        step_tokens=chosen(step_tokens),
        max_queued=max_queued,
        memory=memory,
        need=CacheNeed(blocks * block_tokens, sequences, block_tokens, 4),
    )
    model = FakeModel(
        (blocks + 1) * block_tokens,
        states if recurrent else 0,
        {kind.tokens: (1 + kind.blocks(states)) * block_tokens for kind in kinds},
    )
    runner = Runner(
        model.forward,
        model,
        step_tokens=step_tokens,
        sequences=sequences,
        block_tokens=block_tokens,
        sequence_blocks=-(-plan.context.value // block_tokens),
        windows=windows,
    )
    limits = replace(limits_of(plan, VOCAB, frozenset({END})), windows=kinds)
    return Engine(plan, runner, limits), model


def truth(
    prompt: Sequence[int], sampling: Sampling, *, recurrent: bool = False, context: int = 1 << 20
) -> list[int]:
    """What the fake model answers, one token after the other; a stop token is the last."""
    history = list(prompt)
    drawer = Drawer(Request(tuple(prompt), sampling), frozenset({END}))
    stops = sampling.stop_ids | (frozenset() if sampling.ignore_eos else {END})
    limit = min(context, len(prompt) + (sampling.max_tokens or context))
    while len(history) < limit:
        row = logits_after(history, state_of(history, recurrent=recurrent))
        history.append(drawer.draw(row).token)
        if history[-1] in stops:
            break
    return history[len(prompt) :]
