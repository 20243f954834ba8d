"""Whole layers for prompts: the next layer is copied while this one computes.

Two staging buffers, apart from the resident slots: a prompt evicts nothing. Resident rows are read
where they are and not copied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.device.device import Accelerator, Mark
from headrace.experts.bank import ExpertBank
from headrace.experts.slots import ExpertSlots
from headrace.ops.table import Ops, Planned


@dataclass(frozen=True, slots=True)
class _Coming:
    """A layer on its way: where each expert will be, and what to wait for."""

    slot_of_E: Tensor
    mark: Mark


class LayerStream:
    """`start` a layer early, `take` it when its routing is known."""

    def __init__(self, bank: ExpertBank, slots: ExpertSlots, device: Accelerator, ops: Ops) -> None:
        self._bank, self._slots, self._device, self._ops = bank, slots, device, ops
        self._layers = bank.moe_layers
        self._next = dict(zip(self._layers, self._layers[1:], strict=False))
        widest = max(bank.facts.experts)
        self._every_1E = torch.arange(widest, dtype=torch.int32).view(1, -1)
        self._all = torch.tensor([0, 1], dtype=torch.int32)  # every miss is a fill
        counts_4 = device.zeros((4,), torch.int32)
        self._plans = [slots.planned(1, widest, widest, counts_4) for _ in range(2)]
        self._coming: dict[int, _Coming] = {}

    @property
    def staging(self) -> int:
        """Slots that it needs: two layers' worth."""
        return 2 * max(self._bank.facts.experts)

    def begin(self) -> None:
        """A chunk starts: the first layer is on its way before anything is computed."""
        self._coming.clear()
        self._start(self._layers[0])

    def take(self, layer: int) -> Tensor:
        """Slot of each expert, int32 [E], once the layer is here; the next one is started first."""
        coming = self._coming.pop(layer)
        if layer in self._next:
            self._start(self._next[layer])
        self._device.copies.wait_for(coming.mark)
        return coming.slot_of_E

    def _start(self, layer: int) -> None:
        slots, at = self._slots, self._slots.layer(layer)
        turn = self._layers.index(layer) % 2
        plan = self._view(self._plans[turn], at.experts)
        ids_1E = self._every_1E[:, : at.experts]
        bare = replace(at, shift_E=None)  # slots are told from staging by their numbers
        self._ops.plan(ids_1E, bare, slots.cache, self._all, plan, staging=at.experts)
        slot_of_E = plan.slot_ids_TX.view(-1)
        if turn:  # the second buffer lies behind the first
            half = self.staging // 2
            slot_of_E.add_((slot_of_E >= slots.capacity).int() * half)
            plan.fill_slots_E.add_(half)
        if at.shift_E is not None:
            slot_of_E.add_(at.shift_E)
        spans = self._bank.layouts[layer].spans
        self._device.copies.copy_rows(
            spans,
            plan.fill_experts_E,
            plan.fill_slots_E,
            plan.counts_4[2:3],
            slots.memory,
            slots.slot_bytes,
        )
        self._coming[layer] = _Coming(slot_of_E, self._device.copies.mark())

    def _view(self, plan: Planned, experts: int) -> Planned:
        return Planned(
            plan.slot_ids_TX[:, :experts],
            plan.host_ids_TX[:, :experts],
            plan.fill_experts_E[:experts],
            plan.fill_slots_E[:experts],
            plan.counts_4,
        )
