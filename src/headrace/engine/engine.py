"""The engine: scheduler, runner and sampler wired together. One thread at a time uses it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.config import EngineConfig
from headrace.engine.build import AnyDevice, Built, build, start_device
from headrace.engine.elastic import Resized
from headrace.engine.live import Live
from headrace.engine.metrics import Metrics
from headrace.engine.opening import Opening, open_engine
from headrace.engine.pace import Pace
from headrace.engine.request import Finish, Request, RequestId, Sampling, TokenEvent
from headrace.engine.runner import Runner
from headrace.engine.sampler import Drawer, sample
from headrace.engine.scheduler import Scheduler
from headrace.engine.seq import Limits
from headrace.engine.step import Draw, Step
from headrace.engine.validation import check_tokens
from headrace.errors import DeviceError, HeadraceError
from headrace.planning.budget import MemoryBudget
from headrace.planning.resolve import ExecutionPlan

log = logging.getLogger(__name__)

MOST_SHOWN = 32  # of the queue, in the status


class Engine:
    """`submit` requests and call `step` until it is `idle`; `generate` and `score` do it all."""

    def __init__(
        self,
        plan: ExecutionPlan,
        runner: Runner,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_close: Callable[[], None] = lambda: None,
        built: Built | None = None,
    ) -> None:
        """`built`: what stands behind the runner; without it nothing can be resized or recorded."""
        self.plan = plan
        self._limits = limits
        self._runner = runner
        self._scheduler = Scheduler(limits)
        self._pace = Pace(limits.step_tokens)
        self._drawers: dict[RequestId, Drawer] = {}
        self._outbox: list[TokenEvent] = []
        self._ids = itertools.count(1)
        self._clock = clock
        self._metrics = Metrics(clock)
        self._on_close = on_close
        self._live = None if built is None else Live(built, self._scheduler)
        self._closed = False

    @classmethod
    def load(
        cls,
        path: Path,
        config: EngineConfig | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """An engine for the checkpoint at `path`; `progress` hears (bytes read, bytes in all).

        Raises CheckpointError, ConfigError, CapacityError or DeviceError.
        """
        return cls.start(open_engine(path, config or EngineConfig()), progress)

    @classmethod
    def start(
        cls,
        opening: Opening,
        progress: Callable[[int, int], None] | None = None,
        *,
        device: AnyDevice | None = None,
    ) -> Self:
        """Take over a model that is being read.

        `device`: None = the planned one. It is closed with the engine.
        """
        for line in opening.plan.lines():
            log.info("%s", line)
        device = start_device(opening) if device is None else device
        built = build(opening, device, progress)
        return cls(opening.plan, built.runner, opening.limits, on_close=built.close, built=built)

    @property
    def vocab(self) -> int:
        return self._limits.vocab

    @property
    def context(self) -> int:
        """Tokens of the longest sequence, answer included."""
        return self._limits.context

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a turn of this model."""
        return self._limits.end_ids

    @property
    def idle(self) -> bool:
        """Nothing to compute and nothing to report."""
        return self._scheduler.idle and not self._outbox

    def validate(self, request: Request, *, pending: int = 0) -> None:
        """Raise what `submit` would raise with `pending` more submitted before; from any thread."""
        self._check_open()
        self._scheduler.validate(request, pending=pending)

    def submit(self, request: Request, id: RequestId | None = None) -> RequestId:
        """Queue a request; its events come out of `step`. Ids, where given, ascend.

        Raises RequestError (malformed) or CapacityError (longer than the context; queue full).
        """
        self._check_open()
        id = RequestId(next(self._ids)) if id is None else id
        self._scheduler.submit(id, request)
        self._drawers[id] = Drawer(request, self._limits.end_ids)
        self._metrics.submitted(id, len(request.tokens))
        return id

    def cancel(self, id: RequestId) -> None:
        """End a request in any phase; its last event comes out of the next `step`."""
        event = self._scheduler.cancel(id)
        if event is not None:
            self._settle([event])
            self._outbox.append(event)

    def step(self) -> list[TokenEvent]:
        """Compute one step, if there is anything to do, and return what happened."""
        events, self._outbox = self._outbox, []
        step = self._scheduler.next_step()
        if step is None:
            return events
        self._runner.copy(self._scheduler.copies())
        began = self._clock()
        if self._live is not None:
            self._live.recorder.begin_step(step)
        news = self._run(step)
        if self._live is not None:
            self._live.recorder.end_step()
            self._live.stepped()
        self._observe(step, self._clock() - began)
        self._settle(news)
        return events + news

    def generate(self, tokens: Sequence[int], sampling: Sampling | None = None) -> list[int]:
        """The answer to a prompt, without the stop token that ended it; other requests go on too.

        Raises as `submit` does, and whatever made the request fail.
        """
        id = self.submit(Request(tuple(tokens), sampling or Sampling()))
        others: list[TokenEvent] = []
        answer: list[int] = []
        finish = None
        try:
            while finish is None:
                for event in self.step():
                    if event.request != id:
                        others.append(event)
                        continue
                    finish = event.finish
                    if event.error is not None:
                        raise event.error
                    if event.token is not None and finish is not Finish.STOP:
                        answer.append(event.token)
        finally:
            if finish is None:
                self.cancel(id)
            self._outbox += others
        return answer

    def score(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each token, [tokens, vocab]; row i predicts token i + 1.

        Raises CapacityError beyond the context or while running requests hold the memory.
        """
        self._check_open()
        check_tokens(tokens, vocab=self.vocab, context=self.context, answer=0)
        logits = np.empty((len(tokens), self.vocab), dtype=np.float32)
        with closing(self._scheduler.lend(tokens)) as spans:
            for span in spans:
                self._runner.copy(self._scheduler.copies())
                rows = self._runner.run(Step((span,)), every=True).rows
                logits[span.start : span.start + span.length] = rows
        return logits

    def status(self) -> dict[str, Any]:
        """Plan, load and counters; from any thread. JSON-able, but for infinite bounds."""
        scheduler = self._scheduler
        return {
            "plan": {
                name: {"value": c.value, "reason": c.reason}
                for name, c in self.plan.choices().items()
            },
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "queue": scheduler.queue()[:MOST_SHOWN],
            "kv_blocks_used": scheduler.blocks_used,
            "kv_blocks_cached": scheduler.cache.idle_blocks,
            "kv_blocks_total": scheduler.blocks.count,
            "state_slots_used": scheduler.states_used,
            "state_slots_cached": scheduler.cache.checkpoints.on_device,
            "state_slots_total": scheduler.states.count,
            "windows": scheduler.cache.windows.status(),
            "prefix_hits": scheduler.cache.hits,
            "prefix_evictions": scheduler.cache.evictions,
            "cached_tokens": scheduler.cache.cached_tokens,
            "host_tier": scheduler.cache.store.status(),
            "preemptions": scheduler.preemptions,
            **self._metrics.snapshot(),
            **({} if self._live is None else {"live": self._live.status()}),
        }

    @property
    def live(self) -> Live:
        """What can be done to it while it runs. Raises DeviceError where nothing can."""
        self._check_open()
        if self._live is None:
            raise DeviceError("this engine cannot be changed while it runs")
        return self._live

    def resize(self, budget: MemoryBudget) -> Resized:
        """Between steps; no request is lost. Raises CapacityError where keys and values find
        no memory.
        """
        return self.live.resize(budget)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        self._scheduler.check()
        assert list(self._drawers) == self._scheduler.ids()

    def rest(self) -> None:
        """Nothing runs: says so in the log where something is held all the same."""
        held = self._scheduler.blocks_used, self._scheduler.states_used
        if any(held):
            log.error("idle, and %d KV blocks and %d state slots are held", *held)

    def close(self) -> None:
        """Cancel everything and give back what the device holds. Idempotent."""
        if not self._closed:
            for id in self._scheduler.ids():
                self.cancel(id)
            self._closed = True
            self._on_close()

    def _run(self, step: Step) -> list[TokenEvent]:
        try:
            logits = self._runner.run(step)
            drawers = [self._drawers[span.request] for span in step.spans if span.sample]
            draws: list[Draw] = sample(logits.rows, drawers, logits.best) if drawers else []
        except Exception as error:  # any failure ends the requests of this step, not the engine
            known = isinstance(error, HeadraceError)  # who reads it needs no traceback
            log.error(
                "a step of %d tokens failed: %s", step.tokens, error, exc_info=not known and error
            )
            if self._live is not None:
                self._live.recorder.end_step(failed=True)
            return self._scheduler.fail((span.request for span in step.spans), _typed(error))
        events = self._scheduler.commit(step, draws)
        self._runner.copy(self._scheduler.copies())
        return events

    def _observe(self, step: Step, seconds: float) -> None:
        decode = sum(span.sample and span.length == 1 for span in step.spans)
        tokens = step.tokens
        self._metrics.stepped(seconds, tokens)
        self._pace.observe(seconds, decode=decode, prefill=tokens - decode)
        self._scheduler.mixed_tokens = self._pace.tokens

    def _settle(self, events: Sequence[TokenEvent]) -> None:
        self._metrics.happened(events)
        for event in events:
            if event.finish is not None:
                del self._drawers[event.request]

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the engine is closed", fix="load it again")


def _typed(error: Exception) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return DeviceError(
        f"a step failed: {type(error).__name__}: {error}",
        fix="see the server's log; the engine goes on",
    )
