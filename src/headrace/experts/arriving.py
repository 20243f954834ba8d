"""All experts in RAM, but not yet: they arrive in the background in the order of layers, and a row
that is wanted before is read at once. When all are there nothing differs from `Resident`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.errors import CheckpointError
from headrace.experts.reading import Coming, RowReader
from headrace.ops.table import Ops, Routing
from headrace.planning.facts import ExpertKey, ModelFacts

log = logging.getLogger(__name__)

COMING = 16  # rows on their way at once: the disk always has the next one
LOOK_S = 0.0005  # between two looks at what has come


class Arriving:
    """A placement; `reader` has a slot for every row. Starts reading at once."""

    def __init__(self, reader: RowReader, facts: ModelFacts, ops: Ops, *, most_tokens: int) -> None:
        self._reader, self._ops, self._facts = reader, ops, facts
        self._most = min(COMING, max(1, reader.at_once // 2))  # the rest is for what is wanted
        self._rows = [
            reader.own(layer) if count else None for layer, count in enumerate(facts.experts)
        ]
        self._parts = torch.empty(most_tokens * max(facts.top_k) * facts.hidden)
        self._lock = threading.Lock()  # over all that follows
        self._here = [np.zeros(count, np.bool_) for count in facts.experts]
        self._left = list(facts.experts)  # rows of each layer that are not here
        self._asked: set[ExpertKey] = set()  # on their way, or here
        self._coming: dict[ExpertKey, Coming] = {}  # of these the thread takes care
        self._stop = False
        self.waited = 0  # rows that a step had to wait for
        self._thread = threading.Thread(target=self._fill, name="experts", daemon=True)
        self._thread.start()

    @property
    def whole(self) -> bool:
        """Every row is here: steps can be captured."""
        return not any(self._left)

    def begin(self, tokens: int, *, prefill: bool) -> None:
        """Nothing to prepare."""

    def finish(self) -> None:
        """Nothing to learn."""

    def __call__(self, layer: int, x_TD: Tensor, routing: Routing) -> Tensor:
        rows = self._rows[layer]
        assert rows is not None, f"layer {layer} is dense"
        if not self._left[layer]:
            return self._ops.experts(x_TD, routing, rows)
        ids_TX: NDArray[np.int32] = routing.ids_TX.numpy()
        tokens, top_k = ids_TX.shape
        hidden = x_TD.shape[1]
        parts_TXD = self._parts[: tokens * top_k * hidden].view(tokens, top_k, hidden)
        for experts in self._turns(layer, np.unique(ids_TX[ids_TX >= 0])):
            own_TX = np.where(np.isin(ids_TX, experts), ids_TX, np.int32(-1))
            self._ops.experts_parts(x_TD, torch.from_numpy(own_TX), rows, parts_TXD)
        return self._ops.combine(parts_TXD, routing)

    def status(self) -> dict[str, Any]:
        """Counts; JSON-able."""
        return {
            "rows": self._facts.rows,
            "resident": self._facts.rows - sum(self._left),
            "waited": self.waited,
            "read_bytes": self._reader.queue.bytes,
        }

    def close(self) -> None:
        """Nothing is read any more. Calling it twice is harmless."""
        self._stop = True
        self._thread.join()
        for coming in self._coming.values():
            self._reader.drop(coming)
        self._coming.clear()
        self._reader.close()

    def _turns(self, layer: int, active: NDArray[np.int32]) -> Iterator[list[int]]:
        """Experts that are here, each once, the first ones at once. Raises CheckpointError."""
        here = self._here[layer]
        now = [int(e) for e in active if here[e]]
        wanted = [int(e) for e in active if not here[e]]
        self.waited += len(wanted)
        mine = self._claim(layer, wanted)
        if now:
            yield now
        try:
            while mine or wanted:
                done = [e for e in mine if self._reader.queue.done(mine[e].ticket)]
                for expert in done or list(mine)[:1]:
                    self._take(mine.pop(expert))
                    done = done or [expert]
                late = [e for e in wanted if here[e]]  # the thread was first
                wanted = [e for e in wanted if e not in late]
                mine |= self._claim(layer, wanted)
                if done or late:
                    yield done + late
                else:
                    time.sleep(LOOK_S)
        finally:  # a step that fails leaves nothing on its way: each row can be asked for again
            for coming in mine.values():
                self._reader.drop(coming)
            with self._lock:
                self._asked.difference_update(coming.key for coming in mine.values())

    def _claim(self, layer: int, wanted: list[int]) -> dict[int, Coming]:
        """Those of `wanted` that this thread waits for from now on; they are taken out of it."""
        mine: dict[int, Coming] = {}
        with self._lock:
            for expert in list(wanted):
                key = ExpertKey(layer, expert)
                if key in self._coming:
                    mine[expert] = self._coming.pop(key)
                    self._reader.queue.hurry(mine[expert].ticket)
                elif key not in self._asked and self._reader.ready:
                    mine[expert] = self._start(key, urgent=True)
                else:
                    continue
                wanted.remove(expert)
        return mine

    def _start(self, key: ExpertKey, *, urgent: bool) -> Coming:
        self._asked.add(key)
        return self._reader.start(key, key.expert, urgent=urgent)

    def _take(self, coming: Coming) -> None:
        """Waits for it. Raises CheckpointError; then it can be asked for again."""
        try:
            self._reader.finish(coming)
        except BaseException:
            with self._lock:
                self._asked.discard(coming.key)
            raise
        with self._lock:
            self._here[coming.key.layer][coming.key.expert] = True
            self._left[coming.key.layer] -= 1

    def _fill(self) -> None:
        """Every row that nobody asked for, in order; those that cannot be read are left out."""
        counts = self._facts.experts
        order = (ExpertKey(layer, e) for layer, count in enumerate(counts) for e in range(count))
        following = next(order, None)
        while not self._stop:
            with self._lock:
                done = [k for k, c in self._coming.items() if self._reader.queue.done(c.ticket)]
                come = [self._coming.pop(key) for key in done]
                while following and len(self._coming) < self._most and self._reader.ready:
                    if following not in self._asked:
                        self._coming[following] = self._start(following, urgent=False)
                    following = next(order, None)
                ended = not following and not self._coming
            for coming in come:
                try:
                    self._take(coming)
                except CheckpointError as error:
                    log.error("%s", error)
            if ended and not come:
                break
            if not come:
                time.sleep(LOOK_S)
        if self.whole:
            self._reader.settle()
            log.info("all experts are in memory")
