"""Layers of random experts on an emulated device in real time, whose own arithmetic is paced.

What a GPU computes takes its time without taking a core, so that link and host have the machine to
themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headrace.device.emulated import EmulatedDevice, Emulation
from headrace.experts.bank import ExpertBank
from headrace.experts.measure import measure
from headrace.experts.placement import Hybrid, Prefill
from headrace.experts.slots import ExpertSlots
from headrace.experts.tuning import Tuner
from headrace.ops.choose import ops_for
from headrace.ops.table import ExpertRows, Ops, Routing
from headrace.planning.profile import ProfileRow, layer_kind

KERNELS = 400e9  # bytes/s at which the paced device reads its slots
SLOTS = 16
DEVICE_BYTES = 8 << 30


class Layers:
    """Layers of one model on one device; every expert that is asked for is missing."""

    def __init__(self, bank: ExpertBank, link: float, kernels: float = KERNELS) -> None:
        self.bank = bank
        self.device = EmulatedDevice(Emulation(memory=DEVICE_BYTES, link=link))
        facts = bank.facts
        self.kind = layer_kind(facts, 0) or ""
        self._ops = _paced(ops_for(self.device), self.device, facts.expert_bytes[0], kernels)
        self._x_TD = torch.randn(1, facts.hidden)
        self._turn = 0

    def measured(self) -> ProfileRow:
        return measure(self.bank, self.device, self.bank.moe_layers)

    def placed(self, row: ProfileRow, fill: str | float, misses: int) -> Hybrid:
        """With its own small cache, in which nothing that is asked for ever is."""
        slots = ExpertSlots(self.bank, self.device, capacity=SLOTS, staging=0)
        return self._hybrid(slots, row, fill, misses, 1, Prefill.ON_DEMAND)

    def _hybrid(
        self,
        slots: ExpertSlots,
        row: ProfileRow,
        fill: str | float,
        misses: int,
        tokens: int,
        how: Prefill,
    ) -> Hybrid:
        facts = self.bank.facts
        tuner = Tuner(
            self.device,
            [layer_kind(facts, layer) for layer in range(facts.layers)],
            facts.expert_bytes,
            {self.kind: row},
            fill,
            most=misses,
            slots=slots.capacity,
        )
        return Hybrid(
            self.bank,
            slots,
            self.device,
            self._ops,
            tuner,
            most_tokens=tokens,
            choose=lambda _: how,
        )

    def captured(self, placed: Hybrid, misses: int) -> Callable[[], float]:
        """One decode step as it is served: captured once, replayed; seconds of a layer."""
        facts = self.bank.facts
        ids_1X = torch.zeros(1, misses, dtype=torch.int32)
        routing = Routing(ids_1X, torch.full((1, misses), 1 / misses))
        graph = self.device.graph()
        assert graph is not None
        placed.begin(1, prefill=False)
        with torch.inference_mode(), graph.recording():
            for layer in self.bank.moe_layers:
                placed(layer, self._x_TD, routing)
        placed.finish()
        assert not graph.foreign, graph.foreign

        def step() -> float:
            first = self._turn * misses
            self._turn += 1
            for i in range(misses):
                ids_1X[0, i] = (first + i) % facts.experts[0]
            placed.begin(1, prefill=False)
            began = time.perf_counter()
            graph.replay()
            seconds = time.perf_counter() - began
            placed.finish()
            return seconds / facts.layers

        return step

    def streamed(self, row: ProfileRow, tokens: int) -> float:
        """Seconds of one chunk of a prompt whose layers are streamed; its copies are asked for."""
        facts = self.bank.facts
        experts, top_k = facts.experts[0], facts.top_k[0]
        slots = ExpertSlots(self.bank, self.device, capacity=1, staging=2 * experts)
        placed = self._hybrid(slots, row, "all", experts, tokens, Prefill.STREAM)
        x_TD = torch.randn(tokens, facts.hidden)
        ids_TX = torch.arange(tokens * top_k, dtype=torch.int32).view(tokens, top_k) % experts
        routing = Routing(ids_TX, torch.full((tokens, top_k), 1 / top_k))
        began = time.perf_counter()
        placed.begin(tokens, prefill=True)
        with torch.inference_mode():
            for layer in self.bank.moe_layers:
                placed(layer, x_TD, routing)
        self.device.settle()
        seconds = time.perf_counter() - began
        placed.finish()
        placed.close()
        return seconds

    def close(self) -> None:
        self.device.close()


def _paced(ops: Ops, device: EmulatedDevice, row_bytes: int, kernels: float) -> Ops:
    """Evaluation of slots at `kernels` bytes/s; its results are not used
    for anything here.
    """

    def experts_parts(x_TD: Tensor, ids_TX: Tensor, rows: ExpertRows, parts_TXD: Tensor) -> None:
        device.pool.pace(round(1e9 * ids_TX.numel() * row_bytes / kernels))

    return replace(ops, experts_parts=experts_parts)
