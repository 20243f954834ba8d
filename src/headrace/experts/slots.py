"""Expert slots on the device and the table of what is in them.

One flat cache for all layers: any slot takes a row of any layer. Behind the resident slots, in the
same numbering, lie staging slots that hold no row for longer than a layer of a prompt takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from headrace.device.device import Accelerator
from headrace.errors import CapacityError
from headrace.experts.bank import ExpertBank
from headrace.ops.table import Cache, CacheLayer, ExpertRows, Planned
from headrace.planning.facts import ExpertKey
from headrace.planning.lru import Shrunk, shrink


@dataclass(frozen=True, slots=True)
class Reshaped:
    """What a resize did, in rows."""

    dropped: int
    moved: int


class ExpertSlots:
    """`capacity` resident slots and `staging` more; both may change between steps."""

    def __init__(
        self,
        bank: ExpertBank,
        device: Accelerator,
        *,
        capacity: int,
        staging: int,
        lru: bool = False,
    ) -> None:
        """Raises CapacityError where the device has not the memory."""
        self._bank, self._device = bank, device
        experts = bank.facts.experts
        self._base = [0, *accumulate(experts)]
        self._keys = [ExpertKey(layer, e) for layer, n in enumerate(experts) for e in range(n)]
        self.slot_bytes = bank.slot_bytes
        rows = self._base[-1]
        self._most_staging = 2 * max(experts)
        self._memory = device.elastic((rows + self._most_staging) * self.slot_bytes)
        self._row_of = device.empty((rows,), torch.int32).fill_(-1)  # of every resident slot
        self._fixed = (
            device.empty((rows,), torch.int32).fill_(-1),
            device.zeros((2, rows), torch.int64),
            device.zeros((rows,), torch.int64),
            device.zeros((1,), torch.int64),
        )
        self._lru = lru
        self._cache = self._view(0)
        self.capacity = self.staging = 0
        self._views: dict[tuple[object, ...], ExpertRows] = {}
        self._shifts = {layer: self._shift(layer) for layer in bank.moe_layers}
        try:
            self._resize(capacity, staging)
        except CapacityError:
            self.close()
            raise

    @property
    def cache(self) -> Cache:
        """The residency table, on the device."""
        return self._cache

    @property
    def memory(self) -> Tensor:
        """All slots, uint8."""
        return self._memory.tensor

    @property
    def nbytes(self) -> int:
        return self._memory.committed

    def layer(self, layer: int) -> CacheLayer:
        base, end = self._base[layer], self._base[layer + 1]
        return CacheLayer(base, end - base, self._shifts[layer])

    def rows(self, layer: int) -> ExpertRows:
        """All slots that there can be, as rows of this layer, once in each form that its experts
        have: one object for layers alike, and for ever.
        """
        layout = self._bank.layouts[layer]
        kind = layout.kind()
        if kind not in self._views:
            self._views[kind] = layout.rows(self.memory, self._most, self.slot_bytes)
        return self._views[kind]

    @property
    def _most(self) -> int:
        """Slots that there can be."""
        return self._base[-1] + self._most_staging

    def _shift(self, layer: int) -> Tensor | None:
        """What leads from a slot to the row of the form that an expert has; None = nothing."""
        if len(self._bank.layouts[layer].forms) == 1:
            return None
        forms_E = torch.tensor(self._bank.form_of(layer), dtype=torch.int32)
        return self._device.empty((len(forms_E),), torch.int32).copy_(forms_E * self._most)

    def planned(self, tokens: int, top_k: int, experts: int, counts_4: Tensor) -> Planned:
        """Buffers for the plan of one layer with so many tokens."""
        ids = (tokens, top_k)
        empty = self._device.empty
        return Planned(
            slot_ids_TX=empty(ids, torch.int32),
            host_ids_TX=empty(ids, torch.int32),
            fill_experts_E=empty((experts,), torch.int32),
            fill_slots_E=empty((experts,), torch.int32),
            counts_4=counts_4,
        )

    def residents(self) -> dict[ExpertKey, int]:
        """Every resident expert and its slot. Reads the device: between steps only."""
        rows = self._cache.row_of_S.tolist()
        return {self._keys[row]: slot for slot, row in enumerate(rows) if row >= 0}

    def resize(self, capacity: int, staging: int | None = None) -> Reshaped:
        """Between steps. Shrinking keeps the most valuable rows.

        Raises CapacityError beyond the device's memory; then nothing has changed.
        """
        return self._resize(capacity, self.staging if staging is None else staging)

    def forget(self) -> None:
        """Nothing is resident any more; what is known of uses stays. Between steps."""
        self._fixed[0].fill_(-1)
        self._row_of.fill_(-1)

    def check(self) -> None:
        """Asserts that slots and rows are one to one."""
        cache = self._cache
        rows = cache.row_of_S.tolist()
        held = [row for row in rows if row >= 0]
        assert len(set(held)) == len(held), "a row lies in two slots"
        slot_of = cache.slot_of_R.tolist()
        assert all(slot_of[row] == slot for slot, row in enumerate(rows) if row >= 0)
        assert sum(slot >= 0 for slot in slot_of) == len(held)

    def close(self) -> None:
        self._memory.close()

    def _resize(self, capacity: int, staging: int) -> Reshaped:
        most = self._base[-1]
        if not 0 <= capacity <= most:
            raise CapacityError(f"{capacity} expert slots", expected=f"0 to {most}")
        if not 0 <= staging <= self._most_staging:
            raise CapacityError(
                f"{staging} staging slots", expected=f"0 to {self._most_staging}: two layers"
            )
        self._device.settle()  # a step that failed may have left copies on their way
        nbytes = (capacity + staging) * self.slot_bytes
        evicted = moved = 0
        if nbytes > self._memory.committed:
            self._memory.resize(nbytes)
        if capacity < self.capacity:
            cache = self._cache
            row_of = cache.row_of_S.tolist()
            if capacity:
                plan = shrink(cache.value_R.tolist(), row_of, capacity)
                evicted, moved = len(plan.evicted), len(plan.moves)
                self._apply(plan)
            else:
                evicted = sum(row >= 0 for row in row_of)
                self.forget()
        self._memory.resize(nbytes)
        self.capacity, self.staging = capacity, staging
        self._cache = self._view(capacity)
        self._device.moved()
        return Reshaped(evicted, moved)

    def _view(self, capacity: int) -> Cache:
        slot_of_R, sums_2R, value_R, clock_1 = self._fixed
        return Cache(slot_of_R, self._row_of[:capacity], sums_2R, value_R, clock_1, self._lru)

    def _apply(self, plan: Shrunk) -> None:
        """Rows that stay move down; slots that are given up hold nothing that is told of."""
        slots = self.memory[: self.capacity * self.slot_bytes].view(self.capacity, self.slot_bytes)
        self.forget()  # whoever is interrupted loses rows, but tells nothing wrong
        for source, to in plan.moves:
            slots[to].copy_(slots[source])
        held = [(row, slot) for slot, row in enumerate(plan.row_of_slot) if row >= 0]
        rows, at = torch.tensor(held, dtype=torch.long).view(-1, 2).unbind(1)
        self._fixed[0][rows] = at.int()
        self._row_of[at] = rows.int()
