"""An engine without a model: it answers with given tokens, through the real scheduler, sampler and
prefix cache. Whole sessions of clients run on it in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from headrace.engine.engine import Engine
from headrace.engine.logits import Logits
from headrace.engine.request import Request, RequestId, TokenEvent
from headrace.engine.runner import Runner
from headrace.engine.seq import Limits
from headrace.engine.step import Step
from headrace.models.state import Batch, State
from headrace.planning.budget import CacheNeed, MemoryBudget
from headrace.planning.resolve import Choice, ExecutionPlan

CERTAIN = 1e4  # a logit beside zeros: drawn at any temperature, unless a grammar forbids it

Script = Callable[[tuple[int, ...]], Sequence[int]]  # prompt -> answer, its end token included


class NoState:
    """Nothing is kept: answers are known."""

    state: State = ()


class ScriptedRunner(Runner):
    """Draws the next token of each sequence's script."""

    def __init__(
        self, limits: Limits, pace: Callable[[Step], float], sleep: Callable[[float], None]
    ) -> None:
        """`pace`: seconds that a step takes."""
        super().__init__(
            _no_forward,
            NoState(),
            step_tokens=limits.step_tokens,
            sequences=limits.max_sequences,
            block_tokens=limits.block_tokens,
            sequence_blocks=-(-limits.context // limits.block_tokens),
        )
        self.answers: dict[RequestId, tuple[int, Sequence[int]]] = {}  # prompt tokens, answer
        self.computed = 0  # tokens of all steps
        self._vocab, self._pace, self._sleep = limits.vocab, pace, sleep
        (self._end, *_) = sorted(limits.end_ids)

    def run(self, step: Step, *, every: bool = False) -> Logits:
        self.computed += step.tokens
        seconds = self._pace(step)
        if seconds > 0:
            self._sleep(seconds)
        chosen: list[int] = []
        for span in step.spans:
            prompt, answer = self.answers[span.request]
            at = span.start + span.length - prompt
            if span.sample:
                chosen.append(answer[at] if at < len(answer) else self._end)
        best_N = torch.tensor(chosen, dtype=torch.int64)
        rows_NV = torch.zeros(len(chosen), self._vocab)
        rows_NV[torch.arange(len(chosen)), best_N] = CERTAIN
        return Logits(rows_NV, best_N)


class ScriptedEngine(Engine):
    """`script` is asked once per request; the rest is the product's own."""

    def __init__(
        self,
        script: Script,
        limits: Limits,
        *,
        pace: Callable[[Step], float] = lambda _: 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`clock` and `sleep`: another time than this one."""
        self.runner = ScriptedRunner(limits, pace, sleep)
        super().__init__(_plan(limits), self.runner, limits, clock=clock)
        self._script = script

    @classmethod
    def of(
        cls,
        script: Script,
        *,
        vocab: int,
        end_ids: frozenset[int],
        context: int = 131_072,
        kv_tokens: int = 262_144,
        state_slots: int = 0,
        sequences: int = 16,
        queued: int = 256,
        step_tokens: int = 512,
        anchored: bool = True,
        pace: Callable[[Step], float] = lambda _: 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> ScriptedEngine:
        """`state_slots`: of a recurrent model, or one with windows; 0 = keys and values are all
        that it keeps."""
        limits = Limits(
            vocab=vocab,
            context=context,
            blocks=kv_tokens // 16,
            block_tokens=16,
            state_slots=state_slots,
            step_tokens=step_tokens,
            max_sequences=sequences,
            max_queued=queued,
            end_ids=end_ids,
            prefix_cache=True,
            anchored=anchored,
        )
        return cls(script, limits, pace=pace, clock=clock, sleep=sleep)

    def submit(self, request: Request, id: RequestId | None = None) -> RequestId:
        id = super().submit(request, id)
        self.runner.answers[id] = (len(request.tokens), self._script(request.tokens))
        return id

    def _settle(self, events: Sequence[TokenEvent]) -> None:
        super()._settle(events)
        for event in events:
            if event.finish is not None:
                self.runner.answers.pop(event.request, None)


def _no_forward(_batch: Batch, _state: State) -> Logits:
    raise AssertionError("a scripted engine computes nothing")


def _plan(limits: Limits) -> ExecutionPlan:
    def chosen(value: int) -> Choice[int]:
        return Choice(value, "scripted")

    memory = MemoryBudget(0, 0, 0, 0, 0, limits.state_slots, limits.blocks, limits.block_tokens)
    return ExecutionPlan(
        device=Choice("none", "answers are scripted"),
        dtype=Choice("float32", "scripted"),
        threads=chosen(1),
        context=chosen(limits.context),
        sequences=chosen(limits.max_sequences),
        state_slots=chosen(limits.state_slots),
        kv_blocks=chosen(limits.blocks),
        step_tokens=chosen(limits.step_tokens),
        max_queued=limits.max_queued,
        memory=memory,
        need=CacheNeed(limits.context, limits.max_sequences, limits.block_tokens, 4),
    )
