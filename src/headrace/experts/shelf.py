"""RAM as the shelf between disk and a device: of a layer, what is on the device or in RAM is split
between link and host while the rest is read, and then so is that.

Rows are known to link and host by their slots in RAM: the plan of a turn is rewritten to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.device.clock import Observed
from headrace.experts.slots import ExpertSlots
from headrace.experts.tier import RowTier, Slots
from headrace.ops.table import Planned
from headrace.planning.facts import ExpertKey

Ids = NDArray[np.int32]


class Shelf:
    """The host side of a `Hybrid` whose rows lie on disk. Reads the device in every layer, so a
    step over it is never captured.
    """

    def __init__(self, tier: RowTier, slots: ExpertSlots) -> None:
        self.tier, self._slots = tier, slots
        self._ram_of_E: Ids = np.full(max(tier.facts.experts) + 1, -1, np.int32)  # the last: none
        self._prefill = False
        self._turns: list[int] = []  # of each layer of this step
        self.uses = self.misses = 0  # while decoding, of experts that are not on the device

    def begin(self, *, prefill: bool) -> None:
        """A step starts."""
        self.tier.drop()  # what a step that failed has left
        self._prefill = prefill
        self._turns.clear()
        if not prefill:
            self.tier.table.begin_step()

    def turns(self, layer: int, ids_TX: Tensor, turn: Callable[[Tensor], None]) -> None:
        """Calls `turn` with the ids of experts that are at hand, -1 in place of the others, until
        each was in one turn. A prompt evicts nothing from RAM.
        """
        tier, ids = self.tier, ids_TX.numpy()
        at = self._slots.layer(layer)
        held_E = self._slots.cache.slot_of_R[at.base : at.base + at.experts].numpy() >= 0
        experts = np.unique(ids[ids >= 0])
        held = experts[held_E[experts]]
        wanted = [ExpertKey(layer, int(e)) for e in experts[~held_E[experts]]]
        hits, missing = tier.table.classify(wanted)
        if wanted and not self._prefill:
            tier.table.touch(wanted)
            self.uses += len(wanted)
            self.misses += len(missing)
        waiting = tier.ask_all(missing)

        self._turns.append(0)

        def run(slots: Slots, more: Ids = held[:0]) -> None:
            self._ram_of_E.fill(-1)
            for key, slot in slots.items():
                self._ram_of_E[key.expert] = tier.reader.entry(key, slot)
            now = np.append(more, [key.expert for key in slots]).astype(np.int32)
            self._turns[-1] += 1
            turn(torch.from_numpy(np.where(np.isin(ids, now), ids, np.int32(-1))))

        def settle(slots: Slots) -> None:
            free = tier.table.capacity - len(tier.table)
            kept = dict([*slots.items()][: free if self._prefill else len(slots)])
            tier.keep(kept, wanted)
            tier.leave(slot for key, slot in slots.items() if key not in kept)

        if hits or len(held):
            run(tier.resident(hits), held)
        tier.take_in(missing, waiting, run, settle)

    def rewrite(self, plan: Planned) -> None:
        """Experts that link and host shall read, as slots in RAM."""
        host_TX, fills_E = plan.host_ids_TX.numpy(), plan.fill_experts_E.numpy()
        fills_E = fills_E[: int(plan.counts_4[2])]
        for ids in (host_TX, fills_E):
            ids[...] = self._ram_of_E[ids]
        assert (fills_E >= 0).all(), "a fill is not in RAM"

    def by_layer(self, observed: Sequence[Observed]) -> list[Observed]:
        """What link or host did in this step's turns, added up for each layer; nothing where more
        was observed.
        """
        if len(observed) != sum(self._turns):
            return []
        left = iter(observed)
        turns = ([*islice(left, count)] for count in self._turns)
        return [(sum(rows for rows, _ in some), sum(ns for _, ns in some)) for some in turns]

    def status(self) -> dict[str, Any]:
        """Counts and rates; JSON-able."""
        return self.tier.status() | {"uses": self.uses, "misses": self.misses}

    def close(self) -> None:
        """Gives disk and memory back."""
        self.tier.drop()
        self.tier.reader.close()
