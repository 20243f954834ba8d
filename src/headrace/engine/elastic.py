"""Resizes what a running engine holds, between two steps: expert slots, KV blocks, state slots.

What shrinks gives its memory up before anything grows. No request is lost: a sequence that no
longer fits waits and is computed again.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.cache.lease import Copies
from headrace.engine.crossing import Crossing
from headrace.engine.pools import Pools, host_sizes, sizes_of
from headrace.engine.scheduler import Scheduler
from headrace.errors import CapacityError
from headrace.experts.placement import Hybrid, Placement
from headrace.planning.budget import MemoryBudget
from headrace.planning.elastic import Limits, after_failure


@dataclass(frozen=True, slots=True)
class Resized:
    """Before, after, and what it took."""

    before: MemoryBudget
    after: MemoryBudget
    dropped_rows: int
    preempted: int
    pause_s: float


class Tiers(NamedTuple):
    """Where keys, values and states lie, and what copies between the two."""

    pools: Pools
    host: Pools | None = None
    crossing: Crossing | None = None

    def copy(self, copies: Copies) -> None:
        if self.crossing is not None and copies:
            self.crossing.copy(copies)


class Elastic:
    """The resizable parts of one engine; used by its thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        tiers: Tiers,
        placement: Placement,
        budget: MemoryBudget,
        limits: Limits,
    ) -> None:
        """`budget`: as planned; the slots are what the device really gave."""
        self._scheduler, self._tiers, self._pools = scheduler, tiers, tiers.pools
        self._cache = placement if isinstance(placement, Hybrid) else None
        self.limits = limits
        self.budget = self._given(budget)

    def resize(self, wanted: MemoryBudget) -> Resized:
        """Raises CapacityError where keys, values or state find no memory; then they are as they
        were. Experts get what there is.
        """
        began, before = time.perf_counter(), self.budget
        preemptions, dropped = self._scheduler.preemptions, 0
        try:
            if self._cache is not None and wanted.expert_slots < self._cache.slots.capacity:
                dropped = self._cache.resize(wanted.expert_slots)
            self._shrink(wanted)
            self._grow(wanted)
        except CapacityError:
            with suppress(CapacityError):
                self._grow(before)
            self.budget = self._given(self._grow_experts(self._held(before)))
            raise
        self._resize_host(wanted)
        self.budget = self._given(self._grow_experts(wanted))
        return Resized(
            before,
            self.budget,
            dropped,
            self._scheduler.preemptions - preemptions,
            time.perf_counter() - began,
        )

    def _given(self, budget: MemoryBudget) -> MemoryBudget:
        slots = budget.expert_slots if self._cache is None else self._cache.slots.capacity
        return replace(budget, expert_slots=slots)

    def _held(self, budget: MemoryBudget) -> MemoryBudget:
        """With the blocks and states that there are."""
        now, each = self._scheduler.limits, self.limits
        return replace(
            budget,
            kv_blocks=now.blocks,
            kv_bytes=now.blocks * each.block_bytes,
            state_slots=now.state_slots,
            state_bytes=now.state_slots * each.state_bytes,
        )

    def _shrink(self, wanted: MemoryBudget) -> None:
        limits = self._scheduler.limits
        blocks = min(wanted.kv_blocks, limits.blocks)
        states = min(wanted.state_slots, limits.state_slots)
        if (blocks, states) != (limits.blocks, limits.state_slots):
            moves = self._scheduler.resize(blocks, states)
            # What left for the host tier is still where it was.
            self._tiers.copy(self._scheduler.copies())
            sizes = sizes_of(limits, blocks, states)
            self._pools.resize(sizes, moves, block_tokens=limits.block_tokens)

    def _grow(self, wanted: MemoryBudget) -> None:
        limits = self._scheduler.limits
        blocks, states = wanted.kv_blocks, wanted.state_slots
        if (blocks, states) != (limits.blocks, limits.state_slots):
            sizes = sizes_of(limits, blocks, states)
            self._pools.resize(sizes, block_tokens=limits.block_tokens)
            self._scheduler.resize(blocks, states)

    def _resize_host(self, wanted: MemoryBudget) -> None:
        """RAM is committed page by page: growing it cannot fail here."""
        host, limits = self._tiers.host, self._scheduler.limits
        blocks, states = wanted.host_blocks, wanted.host_states
        if host is None or (blocks, states) == (limits.host_blocks, limits.host_states):
            return
        # The larger of both, while entries move from where they were to where they will be.
        both = (max(blocks, limits.host_blocks), max(states, limits.host_states))
        for number, (n_blocks, n_states) in enumerate((both, (blocks, states))):
            sizes = host_sizes(limits, n_blocks, n_states)
            host.resize(sizes, block_tokens=limits.block_tokens)
            if number == 0:
                self._scheduler.resize_host(blocks, states)
                self._tiers.copy(self._scheduler.copies())

    def _grow_experts(self, wanted: MemoryBudget) -> MemoryBudget:
        while self._cache is not None and wanted.expert_slots > self._cache.slots.capacity:
            try:
                self._cache.resize(wanted.expert_slots)
            except CapacityError:
                less = after_failure(wanted, self.limits)
                if less is None:
                    break
                wanted = less
        return wanted
