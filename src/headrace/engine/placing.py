"""Puts the experts of a loaded model where the plan wants them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace

from headrace.device.cpu import CpuDevice
from headrace.device.emulated import EmulatedDevice
from headrace.engine.opening import Opening
from headrace.errors import CapacityError
from headrace.experts.arriving import COMING, Arriving
from headrace.experts.bank import ExpertBank
from headrace.experts.disk import FromDisk
from headrace.experts.foresight import Foresight
from headrace.experts.placement import Hybrid, Placement, Prefill, Resident, on_device
from headrace.experts.reading import RowReader
from headrace.experts.shelf import Shelf
from headrace.experts.slots import ExpertSlots
from headrace.experts.tier import RowTier
from headrace.experts.tuning import Tuner
from headrace.models.load import LoadedModel
from headrace.ops.table import Ops
from headrace.planning.facts import ExpertKey
from headrace.planning.placement import ExpertsPlan
from headrace.planning.policies import POLICIES
from headrace.planning.resolve import costs_of, kv_element_bytes
from headrace.planning.tier import TierPlan
from headrace.weights.probe import WAYS, Way, probe

log = logging.getLogger(__name__)


def place_experts(
    opening: Opening, model: LoadedModel, device: CpuDevice | EmulatedDevice, ops: Ops
) -> Placement:
    """Raises CapacityError where the device has not the memory that was planned, CheckpointError
    where rows cannot be read.
    """
    plan, tier = opening.plan.experts, opening.plan.tier
    if tier is not None and plan is None:
        return _from_disk(opening, tier, model, ops)
    if tier is None and not opening.rows:
        return _arriving(opening, model, ops)
    behind = None if tier is None else _tier(opening, tier, model)
    rows, entries = model.expert_rows, None
    if behind is not None:
        reader, counts = behind.reader, dict(enumerate(model.facts.experts))
        rows = tuple(reader.rows(layer) if count else None for layer, count in counts.items())
        entries = {
            layer: [reader.entry(ExpertKey(layer, e)) for e in range(count)]
            for layer, count in counts.items()
        }
    bank = ExpertBank(rows, model.facts, entries)
    if plan is None:
        return Resident(bank.rows, ops)
    assert isinstance(device, EmulatedDevice)
    if plan.placement.value == "resident":
        return Resident(on_device(bank, device), ops)
    capacity = plan.slots.value
    while True:
        try:
            return _hybrid(opening, plan, bank, device, ops, capacity, behind)
        except CapacityError:  # a tenth less, and again
            if capacity <= 1:
                raise
        capacity = capacity * 9 // 10


def _arriving(opening: Opening, model: LoadedModel, ops: Ops) -> Arriving:
    """Room for every row; they come by themselves."""
    facts, way = model.facts, Way(*WAYS[0], 0.0)
    source, frames = opening.source.rows(), model.expert_rows
    reader = RowReader(source, frames, None, stages=2 * COMING, way=way)
    return Arriving(reader, facts, ops, most_tokens=opening.limits.step_tokens)


def _tier(opening: Opening, plan: TierPlan, model: LoadedModel) -> RowTier:
    """RAM as the cache of rows on disk."""
    source, facts = opening.source.rows(), model.facts
    way = probe(source)
    log.info("disk: %s", way)
    slots = plan.rows.value + plan.spare
    reader = RowReader(source, model.expert_rows, slots, stages=plan.spare, way=way)
    policy = POLICIES[plan.policy.value](facts.experts, {})
    return RowTier(reader, facts, policy, capacity=plan.rows.value, spare=plan.spare)


def _from_disk(opening: Opening, plan: TierPlan, model: LoadedModel, ops: Ops) -> FromDisk:
    """The CPU computes what is in RAM."""
    tier, asked = _tier(opening, plan, model), opening.config.experts
    ahead = None
    if asked.read_ahead != "off":
        ahead = Foresight(tier, model.transformer.guess, always=asked.read_ahead == "on")
    return FromDisk(tier, ops, ahead, most_tokens=opening.limits.step_tokens)


def _hybrid(
    opening: Opening,
    plan: ExpertsPlan,
    bank: ExpertBank,
    device: EmulatedDevice,
    ops: Ops,
    capacity: int,
    behind: RowTier | None,
) -> Hybrid:
    """With so many slots, and all that it needs beside them; `behind`: RAM that `bank` is of, as
    the cache of rows on disk. Raises CapacityError.
    """
    lru, staging = plan.policy.value == "lru", plan.staging.value
    asked = opening.config.experts.fill if plan.placement.value == "hybrid" else "none"
    slots = ExpertSlots(bank, device, capacity=capacity, staging=staging, lru=lru)
    try:
        tuner = Tuner(
            device,
            plan.kinds,
            [bank.row_bytes(layer) for layer in range(len(plan.kinds))],
            plan.rows,
            asked,
            most=max(bank.facts.experts),
            slots=capacity,
        )
        return Hybrid(
            bank,
            slots,
            device,
            ops,
            tuner,
            most_tokens=opening.limits.step_tokens,
            choose=_chooser(opening, plan, slots),
            shelf=None if behind is None else Shelf(behind, slots),
        )
    except CapacityError:
        slots.close()
        raise


def _chooser(opening: Opening, plan: ExpertsPlan, slots: ExpertSlots) -> Callable[[int], Prefill]:
    """How a chunk of so many tokens gets its experts: the sooner way, as predicted for the slots
    that there are.
    """
    facts, dtype = opening.source.facts, opening.plan.dtype.value
    costs = costs_of(plan, opening.machine, facts, kv_element_bytes(dtype))

    seating = costs.seating
    assert seating is not None

    @functools.lru_cache(maxsize=4096)
    def choose(tokens: int, capacity: int) -> Prefill:
        if plan.prefill.value != "by chunk":
            return Prefill.ON_DEMAND
        now = replace(costs, seating=replace(seating, slots=capacity))
        return Prefill(now.choose_prefill(tokens))

    return lambda tokens: choose(tokens, slots.capacity)
