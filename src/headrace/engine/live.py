"""What can be done to a running engine: resize it, record its routing, ask how its experts fare.

On a device with memory of its own the budget follows the context and the pressure of other
programs by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace.device.emulated import EmulatedDevice
from headrace.engine.build import Built
from headrace.engine.elastic import Elastic, Resized
from headrace.engine.recorder import Recorder
from headrace.engine.scheduler import Scheduler
from headrace.errors import CapacityError
from headrace.experts.arriving import Arriving
from headrace.experts.disk import FromDisk
from headrace.experts.placement import Hybrid
from headrace.planning.budget import MemoryBudget, mib
from headrace.planning.elastic import Limits, Use, at_rest, limits_for, parse_resize, rebalance

log = logging.getLogger(__name__)

LOOK_STEPS = 16  # between two looks at whether the memory is well divided


class Live:
    """Over the parts of one engine; used by its thread, `status` by any."""

    def __init__(self, built: Built, scheduler: Scheduler) -> None:
        self._built, self._scheduler = built, scheduler
        opening = built.opening
        limits = limits_for(
            opening.facts,
            opening.plan.memory,
            opening.plan.need,
            context=opening.limits.context,
            placement="" if opening.plan.experts is None else opening.plan.experts.placement.value,
        )
        self._elastic = Elastic(
            scheduler, built.tiers, built.placement, opening.plan.memory, limits
        )
        asked, memory = opening.config.experts.cache, opening.config.memory
        self._rest(asked=asked is not None or memory.device_bytes is not None)
        self._resizes = self._steps = 0
        self._last: Resized | None = None

    @property
    def recorder(self) -> Recorder:
        return self._built.recorder

    @property
    def budget(self) -> MemoryBudget:
        """As it is now."""
        return self._elastic.budget

    def parse(self, body: Mapping[str, Any]) -> MemoryBudget:
        """The budget that a resize request asks for. Raises RequestError or CapacityError."""
        return parse_resize(body, self._elastic.budget, self._elastic.limits)

    def resize(self, wanted: MemoryBudget) -> Resized:
        """As somebody asked, between steps. Raises CapacityError."""
        done = self._carry_out(wanted)
        self._rest(asked=True)
        return done

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A resize request and its reply; JSON-able. Raises as `parse` and `resize` do."""
        return _done(self.resize(self.parse(body)))

    def _carry_out(self, wanted: MemoryBudget) -> Resized:
        try:
            done = self._elastic.resize(wanted)
        finally:
            self._built.graphs.drop()
        self._resizes += 1
        self._last = done
        log.info("resized in %.0f ms: %s", 1e3 * done.pause_s, _short(done.after))
        return done

    def stepped(self) -> None:
        """A step has ended: now and then the memory is divided anew, if that is due."""
        self._steps += 1
        device = self._built.device
        if self._steps % LOOK_STEPS or not isinstance(device, EmulatedDevice):
            return
        use = Use(self._scheduler.blocks_wanted, device.memory.free)
        wanted = rebalance(self._elastic.budget, use, self._elastic.limits)
        if wanted is not None:
            try:
                self._carry_out(wanted)
            except CapacityError as error:  # somebody else took it first
                log.warning("the memory could not be divided anew: %s", error)
            except Exception:  # ours; the step that has just run must not be lost with it
                log.exception("dividing the memory anew failed")

    def status(self) -> dict[str, Any]:
        """JSON-able."""
        said: dict[str, Any] = {
            "budget": _told(self._elastic.budget),
            "limits": _bounds(self._elastic.limits, self._elastic.budget.block_tokens),
            "resizes": self._resizes,
            "recording": self.recorder.recording,
            "recorded_tokens": self.recorder.tokens,
        }
        if self._last is not None:
            said["last_resize"] = _done(self._last)
        placement = self._built.placement
        if isinstance(placement, Hybrid):
            said["experts"] = placement.status()
            if placement.shelf is not None:
                said["tier"] = placement.shelf.status()
        if isinstance(placement, FromDisk | Arriving):
            said["tier"] = placement.status()
        return said

    def _rest(self, *, asked: bool) -> None:
        """What is free now is how it shall be: only changes are followed from here on."""
        device, elastic = self._built.device, self._elastic
        if isinstance(device, EmulatedDevice):
            free = device.memory.free
            elastic.limits = at_rest(elastic.limits, elastic.budget, free, asked=asked)


def _done(done: Resized) -> dict[str, Any]:
    """For status and replies."""
    return {
        "before": _told(done.before),
        "after": _told(done.after),
        "dropped_rows": done.dropped_rows,
        "preempted": done.preempted,
        "pause_s": done.pause_s,
    }


def _bounds(limits: Limits, block_tokens: int) -> dict[str, list[int]]:
    """Least and most of what a resize may name."""
    kv = limits.kv_blocks
    return {
        "expert_slots": [limits.slots.least, limits.slots.most],
        "kv_tokens": [kv.least * block_tokens, kv.most * block_tokens],
        "state_slots": [limits.state_slots.least, limits.state_slots.most],
        "host_kv_tokens": [0, limits.host_blocks.most * block_tokens],
        "host_states": [0, limits.host_states.most],
    }


def _told(budget: MemoryBudget) -> dict[str, Any]:
    return {
        "device_bytes": budget.free,
        "expert_slots": budget.expert_slots,
        "expert_bytes": budget.expert_slots * budget.slot_bytes,
        "kv_blocks": budget.kv_blocks,
        "kv_tokens": budget.kv_tokens,
        "state_slots": budget.state_slots,
        "host_kv_tokens": budget.host_blocks * budget.block_tokens,
        "host_states": budget.host_states,
    }


def _short(budget: MemoryBudget) -> str:
    return (
        f"{budget.expert_slots} expert slots ({mib(budget.expert_slots * budget.slot_bytes)}), "
        f"{budget.kv_tokens} tokens of keys and values, {budget.state_slots} state slots"
    )
