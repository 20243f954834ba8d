"""Ways to run a MoE layer; each fits `models.state.Experts`.

Invariant: every (token, expert) part is computed once, alone, and the parts of a token are summed
in ascending expert id. So the result has the same bits wherever each expert was computed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.device.device import Accelerator
from headrace.experts.bank import ExpertBank
from headrace.experts.shelf import Shelf
from headrace.experts.slots import ExpertSlots
from headrace.experts.stream import LayerStream
from headrace.experts.tuning import Tuner
from headrace.ops.experts.native import expert_layer
from headrace.ops.table import ExpertRows, Ops, Planned, Routing
from headrace.planning.policies import Fade, fade_of


class Placement(Protocol):
    """Runs the experts of each layer, and hears where a step begins and ends."""

    def begin(self, tokens: int, *, prefill: bool) -> None:
        """A step of so many tokens starts. `prefill`: some of them are of a prompt's chunk."""

    def finish(self) -> None:
        """It has run. A step that failed is not finished."""

    def __call__(self, layer: int, x_TD: Tensor, routing: Routing) -> Tensor: ...


class Resident:
    """All experts are where the device computes: nothing is ever moved."""

    def __init__(self, rows: Callable[[int], ExpertRows], ops: Ops) -> None:
        """`rows`: the experts of a layer."""
        self._rows, self._run = rows, ops.experts

    def begin(self, tokens: int, *, prefill: bool) -> None:
        """Nothing to prepare."""

    def finish(self) -> None:
        """Nothing to learn."""

    def __call__(self, layer: int, x_TD: Tensor, routing: Routing) -> Tensor:
        return self._run(x_TD, routing, self._rows(layer))


def on_device(bank: ExpertBank, device: Accelerator) -> Callable[[int], ExpertRows]:
    """Every expert copied to the device. Raises CapacityError."""
    step = bank.slot_bytes
    memory = device.elastic(sum(bank.facts.experts) * step)
    memory.resize(sum(bank.facts.experts) * step)
    layers, first = {}, 0
    for layer, layout in bank.layouts.items():
        count = bank.rows(layer).count
        every = torch.arange(count, dtype=torch.int32)
        to = memory.tensor[first * step :]
        number = torch.tensor([count], dtype=torch.int32)
        device.copies.copy_rows(layout.spans, every, every, number, to, step)
        layers[layer] = layout.own(to, step)
        first += count
    device.copies.wait()
    device.copies.observations()
    return layers.__getitem__


class Prefill(Enum):
    """How a prompt's chunk gets its experts."""

    STREAM = "stream"  # whole layers
    ON_DEMAND = "on demand"  # only what it routes to


class Hybrid:
    """Hits in slots, fills over the link, the rest on the host: the last two at the same time.

    The fill rule is a table `q[m]` per layer, so that the device only looks it up.
    """

    def __init__(
        self,
        bank: ExpertBank,
        slots: ExpertSlots,
        device: Accelerator,
        ops: Ops,
        tuner: Tuner,
        *,
        most_tokens: int,
        choose: Callable[[int], Prefill],
        shelf: Shelf | None = None,
    ) -> None:
        """`choose`: tokens of a prompt's chunk -> how; `shelf`: the rows of `bank` are slots in RAM
        for rows on disk, and no chunk is streamed. Raises CapacityError.
        """
        self._bank, self._device, self._ops = bank, device, ops
        self.slots, self._tuner, self.shelf = slots, tuner, shelf
        self._choose = choose
        self._stream = LayerStream(bank, slots, device, ops)
        self._host_layers = {i: expert_layer(bank.rows(i)) for i in bank.moe_layers}
        facts = bank.facts
        widest, top_k = max(facts.experts), max(facts.top_k)
        self._counts_L4 = device.zeros((facts.layers, 4), torch.int32)
        self._room = slots.planned(most_tokens, top_k, widest, self._counts_L4[0])
        self._parts = device.empty((most_tokens * top_k * facts.hidden,))
        self._how: Prefill | None = None
        self._fade: Fade | None = None
        self._open = False

    def begin(self, tokens: int, *, prefill: bool) -> None:
        """A step of so many tokens starts. `prefill`: any of them is of a prompt's chunk."""
        if self._open:
            self._recover()
        self._open, self._how = True, None
        if self.shelf is not None:
            self.shelf.begin(prefill=prefill)
        if prefill:
            self._fade = fade_of(tokens)
            self._how = self._choose(tokens)
            if self.slots.staging < self._stream.staging:
                self._how = Prefill.ON_DEMAND
            if self._how is Prefill.STREAM:
                self._stream.begin()

    def finish(self) -> None:
        """The step has run: learn from it. Reads the device, so not within a captured step."""
        self._open = False
        links, hosts = self._device.copies.observations(), self._device.host_pool.observations()
        if self._how is None:
            counts = self._counts_L4[list(self._bank.moe_layers)].numpy()
            if self.shelf is not None:
                links, hosts = self.shelf.by_layer(links), self.shelf.by_layer(hosts)
            self._tuner.observe(counts, links, hosts)

    def resize(self, slots: int) -> int:
        """So many resident slots from now on; rows dropped. Raises CapacityError."""
        dropped = self.slots.resize(slots).dropped
        self._tuner.resize(slots)
        return dropped

    def close(self) -> None:
        """Gives its slots back to the device."""
        self.slots.close()
        if self.shelf is not None:
            self.shelf.close()

    def status(self) -> dict[str, Any]:
        """Counts, rates and branch times; JSON-able."""
        return {"slots": self.slots.capacity, "staging": self.slots.staging} | self._tuner.status()

    def __call__(self, layer: int, x_TD: Tensor, routing: Routing) -> Tensor:
        if self._how is None:
            return self._split(layer, x_TD, routing, self._tuner.quota(layer), staging=0)
        assert self._fade is not None
        if self._how is Prefill.STREAM:
            y_TD = self._streamed(layer, x_TD, routing)
        else:
            # No staging: nothing can be filled without an eviction, so the host does it all.
            quota = self._tuner.quota(layer) if self.slots.staging else self._tuner.none
            staging = max(1, self.slots.staging)
            y_TD = self._split(layer, x_TD, routing, quota, staging=staging)
        at = self.slots.layer(layer)
        self._ops.observe(routing.ids_TX, at, self.slots.cache, self._fade)
        return y_TD

    def _split(
        self, layer: int, x_TD: Tensor, routing: Routing, quota_Q: Tensor, *, staging: int
    ) -> Tensor:
        plan, parts_TXD = self._buffers(layer, routing, x_TD.shape[1])

        def turn(ids_TX: Tensor) -> None:
            self._turn(layer, x_TD, ids_TX, quota_Q, plan, parts_TXD, staging=staging)

        if self.shelf is None:
            turn(routing.ids_TX)
        else:
            self._in_turns(layer, routing.ids_TX, turn, self.shelf)
        return self._ops.combine(parts_TXD, routing)

    def _in_turns(
        self, layer: int, ids_TX: Tensor, turn: Callable[[Tensor], None], shelf: Shelf
    ) -> None:
        """The counts of all turns are those of the layer."""
        counts_4 = self._counts_L4[layer]
        total_4 = torch.zeros_like(counts_4)

        def counted(now_TX: Tensor) -> None:
            turn(now_TX)
            total_4.add_(counts_4)

        shelf.turns(layer, ids_TX, counted)
        counts_4.copy_(total_4)

    def _turn(
        self,
        layer: int,
        x_TD: Tensor,
        ids_TX: Tensor,
        quota_Q: Tensor,
        plan: Planned,
        parts_TXD: Tensor,
        *,
        staging: int,
    ) -> None:
        device, slots, ops = self._device, self.slots, self._ops
        at, host = slots.layer(layer), self._host_layers[layer]
        device.host_pool.alert()
        try:
            ops.plan(ids_TX, at, slots.cache, quota_Q, plan, staging=staging)
            if self.shelf is not None:
                self.shelf.rewrite(plan)
            device.host_pool.ring(x_TD, plan.host_ids_TX, host, parts_TXD, exact=device.exact)
            device.copies.copy_rows(
                self._bank.layouts[layer].spans,
                plan.fill_experts_E,
                plan.fill_slots_E,
                plan.counts_4[2:3],
                slots.memory,
                slots.slot_bytes,
                poison=device.poison,
            )
            device.copies.wait()
            ops.experts_parts(x_TD, plan.slot_ids_TX, slots.rows(layer), parts_TXD)
            device.host_pool.wait()
        except BaseException:
            device.settle()  # before what the host reads is given to others
            raise

    def _recover(self) -> None:
        """The last step failed half-way: nobody learns from it, and what it admitted may never
        have been copied.
        """
        self._device.settle()
        self._device.copies.observations(), self._device.host_pool.observations()
        if self._how is None:
            self.slots.forget()

    def _streamed(self, layer: int, x_TD: Tensor, routing: Routing) -> Tensor:
        slot_of_E = self._stream.take(layer)
        _, parts_TXD = self._buffers(layer, routing, x_TD.shape[1])
        ids_TX = slot_of_E[routing.ids_TX.long()]
        self._ops.experts_parts(x_TD, ids_TX, self.slots.rows(layer), parts_TXD)
        return self._ops.combine(parts_TXD, routing)

    def _buffers(self, layer: int, routing: Routing, hidden: int) -> tuple[Planned, Tensor]:
        """Views of the same memory whatever the number of tokens, so that a capture can name it."""
        tokens, top_k = routing.ids_TX.shape
        room, n = self._room, tokens * top_k
        plan = Planned(
            room.slot_ids_TX.view(-1)[:n].view(tokens, top_k),
            room.host_ids_TX.view(-1)[:n].view(tokens, top_k),
            room.fill_experts_E,
            room.fill_slots_E,
            self._counts_L4[layer],
        )
        return plan, self._parts[: n * hidden].view(tokens, top_k, hidden)
