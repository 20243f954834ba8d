"""A placement over rows that lie on disk: what is in RAM is computed while the rest is read.

Invariant: every (token, expert) part is computed once, alone, and the parts of a token are summed
in ascending expert id: the bits of `Resident`, wherever the rows came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.experts.foresight import Foresight
from headrace.experts.tier import RowTier, Slots
from headrace.ops.table import Ops, Routing
from headrace.planning.facts import ExpertKey

Ids = NDArray[np.int32]


class FromDisk:
    """Runs MoE layers over a `RowTier`; fits `placement.Placement`."""

    def __init__(
        self, tier: RowTier, ops: Ops, foresight: Foresight | None, *, most_tokens: int
    ) -> None:
        self.tier, self._ops, self._foresight = tier, ops, foresight
        facts = tier.facts
        self._parts = torch.empty(most_tokens * max(facts.top_k) * facts.hidden)
        self._most = max(facts.experts)
        self._prefill = False
        self._counts: Counter[ExpertKey] = Counter()
        self._tokens = 0
        self.uses = self.misses = 0  # of experts, while decoding

    def begin(self, tokens: int, *, prefill: bool) -> None:
        """A step of so many tokens starts. `prefill`: any of them is of a prompt's chunk."""
        self.tier.drop()  # what a step that failed has left
        self._prefill, self._tokens = prefill, tokens
        self._counts.clear()
        if not prefill:
            self.tier.table.begin_step()

    def finish(self) -> None:
        """The step has run: learn from it."""
        if self._prefill and self._counts:
            self.tier.table.prefilled(self._counts, self._tokens)

    def __call__(self, layer: int, x_TD: Tensor, routing: Routing) -> Tensor:
        ids_TX: Ids = routing.ids_TX.numpy()
        experts, counts = np.unique(ids_TX[ids_TX >= 0], return_counts=True)
        active = [ExpertKey(layer, int(e)) for e in experts]
        tokens, top_k = ids_TX.shape
        hidden = x_TD.shape[1]
        parts_TXD = self._parts[: tokens * top_k * hidden].view(tokens, top_k, hidden)
        rows = self.tier.reader.rows(layer)

        def run(slots: Slots) -> None:
            slot_of_E: Ids = np.full(self._most + 1, -1, np.int32)  # the last: no expert
            for key, slot in slots.items():
                slot_of_E[key.expert] = self.tier.reader.entry(key, slot)
            self._ops.experts_parts(x_TD, torch.from_numpy(slot_of_E[ids_TX]), rows, parts_TXD)

        if self._prefill:
            self._stream(layer, active, counts.tolist(), run)
        else:
            self._decode(layer, active, x_TD, run)
        return self._ops.combine(parts_TXD, routing)

    def _decode(
        self,
        layer: int,
        active: list[ExpertKey],
        x_TD: Tensor,
        run: Callable[[Slots], None],
    ) -> None:
        tier = self.tier
        tier.table.touch(active)
        hits, missing = tier.table.classify(active)
        self.uses += len(active)
        self.misses += len(missing)
        if self._foresight is not None:
            self._foresight.judge(layer, active)
        wrong = set(tier.awaited(layer)).difference(missing)
        tier.drop([*wrong])
        waiting = tier.ask_all(missing)
        if self._foresight is not None and not waiting:
            self._foresight.look(layer, x_TD)
        if hits:
            run(tier.resident(hits))
        tier.take_in(missing, waiting, run, lambda slots: tier.keep(slots, active))

    def _stream(
        self,
        layer: int,
        active: list[ExpertKey],
        counts: list[int],
        run: Callable[[Slots], None],
    ) -> None:
        """What is not resident passes through the spare slots. A prompt evicts nothing; free places
        go to the rows that it uses most, to each layer its share of them.
        """
        tier, facts = self.tier, self.tier.facts
        self._counts.update(dict(zip(active, counts, strict=True)))
        hits, missing = tier.table.classify(active)
        free = tier.table.capacity - len(tier.table)
        share = -(-tier.table.capacity * facts.experts[layer] // facts.rows) - len(hits)
        by_use = sorted(missing, key=lambda key: (-self._counts[key], key))
        kept = set(by_use[: max(0, min(free, share))])
        waiting = tier.ask_all(missing)
        if hits:
            run(tier.resident(hits))

        def settle(slots: Slots) -> None:
            tier.keep({key: slot for key, slot in slots.items() if key in kept}, active)
            tier.leave([slot for key, slot in slots.items() if key not in kept])

        tier.take_in(missing, waiting, run, settle)

    def status(self) -> dict[str, Any]:
        """Counts and rates; JSON-able."""
        said = self.tier.status() | {"uses": self.uses, "misses": self.misses}
        if self._foresight is not None:
            said["foresight"] = self._foresight.status()
        return said

    def close(self) -> None:
        """Gives disk and memory back."""
        self.tier.drop()
        self.tier.reader.close()
