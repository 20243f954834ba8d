"""Routing recorder: wraps the experts of a model and keeps what the router chose.

Off until started, and bounded: when it is full it stops by itself and says so. On a device whose
routing is not in host memory each layer then waits for a copy, so nothing records by default.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.engine.step import Step
from headrace.errors import CapacityError, RequestError
from headrace.planning.trace import NONE, Ids, RoutingTrace, TraceModel

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.models.state import Experts
    from headrace.ops.table import Routing

MOST_TOKENS = 1 << 17


class Recorder:
    """Records one step at a time; `start`, `stop` and `full` may be called from any thread."""

    def __init__(self, model: TraceModel) -> None:
        self._model = model
        self._column = {layer: i for i, layer in enumerate(model.moe_layers)}
        self._lock = threading.Lock()
        self._room = 0  # tokens that may still be recorded; 0 = off
        self._full = False
        self._tokens = 0
        self._steps: list[tuple[NDArray[np.bool_], Ids]] = []
        self._current: tuple[NDArray[np.bool_], Ids] | None = None

    @property
    def recording(self) -> bool:
        return self._room > 0

    @property
    def full(self) -> bool:
        """It stopped by itself; `stop` still gives what it has."""
        return self._full

    @property
    def tokens(self) -> int:
        """Recorded so far, or when it stopped by itself."""
        return self._tokens

    def experts(self, inner: Experts) -> Experts:
        """The same experts, listened to."""

        def listened(layer: int, x_TD: Tensor, routing: Routing) -> Tensor:
            if self._current is not None:
                self._record(layer, routing.ids_TX)
            return inner(layer, x_TD, routing)

        return listened

    def start(self, most_tokens: int = MOST_TOKENS) -> None:
        """From the next step on. Raises CapacityError; RequestError where it already records."""
        if not 0 < most_tokens <= MOST_TOKENS:
            raise CapacityError(f"a trace of {most_tokens} tokens", expected=f"1 to {MOST_TOKENS}")
        with self._lock:
            if self.recording:
                raise RequestError("a trace is being recorded", fix="stop it first")
            self._steps, self._full, self._room = [], False, most_tokens
            self._tokens = 0

    def stop(self) -> RoutingTrace:
        """What was recorded; the step that runs now is left out. Raises RequestError when off."""
        with self._lock:
            if not self.recording and not self._full:
                raise RequestError("no trace is being recorded", fix="start one first")
            steps, self._steps, self._room, self._full = self._steps, [], 0, False
        shape = (0, len(self._column), self._model.widest)
        return RoutingTrace(
            self._model,
            np.array([len(prefill) for prefill, _ in steps], np.uint32),
            np.concatenate([np.zeros(0, np.bool_), *(prefill for prefill, _ in steps)]),
            np.concatenate([np.zeros(shape, np.uint16), *(ids for _, ids in steps)]),
        )

    def begin_step(self, step: Step) -> None:
        """The engine is about to run this step."""
        with self._lock:
            self._current = None
            if not self.recording:
                return
            if step.tokens > self._room:
                self._room, self._full = 0, True
                return
            spans = [np.full(s.length, s.length > 1 or s.start == 0) for s in step.spans]
            prefill = np.concatenate(spans)
            ids = np.full((len(prefill), len(self._column), self._model.widest), NONE, np.uint16)
            self._current = (prefill, ids)

    def end_step(self, *, failed: bool = False) -> None:
        """It has run; a step that failed is not kept."""
        with self._lock:
            if self._current is not None and self.recording and not failed:
                self._steps.append(self._current)
                self._room -= len(self._current[0])
                self._tokens += len(self._current[0])
                if not self._room:
                    self._full = True
            self._current = None

    def _record(self, layer: int, ids_TX: Tensor) -> None:
        current = self._current
        if current is not None:
            chosen = ids_TX.cpu().numpy()
            current[1][: chosen.shape[0], self._column[layer], : chosen.shape[1]] = chosen
