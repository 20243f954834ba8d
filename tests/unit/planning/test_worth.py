"""Device memory for experts, keys and values, and saved states: no other division saves more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import EngineConfig
from headrace.planning.budget import MemoryBudget
from headrace.planning.cost import Costs
from headrace.planning.curves import Curve, Habits
from headrace.planning.facts import KvNeed, ModelFacts, RecurrentNeed, StateNeed
from headrace.planning.machine import Machine
from headrace.planning.machines import declared
from headrace.planning.resolve import costs_of, equip, resolve, resolve_device
from headrace.planning.worth import Shares, experts_claim, kv_claim, worthwhile

GIB, MIB = 1 << 30, 1 << 20
LEAST, MOST, BLOCKS, STATES, CHUNK = 8, 9000, 4000, 32, 2048


def model(*, recurrent: bool) -> ModelFacts:
    """The shape of a 35B model: 40 layers of 256 experts, top-8, in bfloat16; of its mixers 30 are
    recurrent (63 MB a state) or none is."""
    attention: StateNeed = KvNeed(512, 512)
    delta: StateNeed = RecurrentNeed((32, 128, 128), (8192, 3))
    every = [attention if i % 4 == 3 or not recurrent else delta for i in range(40)]
    return ModelFacts(
        family="test",
        layers=40,
        hidden=2048,
        vocab=248_320,
        max_context=262_144,
        state=tuple(every),
        experts=(256,) * 40,
        top_k=(8,) * 40,
        expert_bytes=(3 * 2048 * 512 * 2,) * 40,
        total_bytes=40 * 256 * 3 * 2048 * 512 * 2 + 5 * GIB,
        dtype="bfloat16",
    )


def on_preset(config: EngineConfig, facts: ModelFacts) -> Machine:
    preset = declared("rtx5090-server").machine
    return equip(config, preset, facts, resolve_device(config, facts))


def costs(facts: ModelFacts) -> Costs:
    config = EngineConfig.of(**{"device": "emulated", "emulated.machine": "rtx5090-server"})
    machine = on_preset(config, facts)
    plan = resolve(config, machine, facts)
    assert plan.experts is not None
    return costs_of(plan.experts, machine, facts, 2)


def budget(facts: ModelFacts, states: int) -> MemoryBudget:
    """32 GiB, of which 5 are dense weights; one block of 16 tokens and some states are charged."""
    each, block = facts.state_bytes_per_sequence(), 16 * facts.kv_bytes_per_token(2)
    return MemoryBudget(
        free=32 * GIB,
        weights=5 * GIB,
        reserve=256 * MIB,
        state_bytes=states * each,
        kv_bytes=block,
        state_slots=states if each else 0,
        kv_blocks=1,
        block_tokens=16,
        slot_bytes=facts.slot_bytes,
    )


def divided(made: Costs, plan: MemoryBudget, **over: Any) -> Shares:
    limits: dict[str, Any] = {
        "least": LEAST,
        "most": MOST,
        "kv_blocks": BLOCKS,
        "states": STATES,
        "chunk": CHUNK,
    }
    return worthwhile(made, plan, **(limits | over))


def saved(made: Costs, plan: MemoryBudget, shares: Shares, habits: Habits) -> float:
    """Seconds a token, by the two curves and the bytes that are left for keys and values."""
    each = made.facts.state_bytes_per_sequence()
    room = plan.free - plan.used + plan.kv_bytes
    left = room - (shares.states - plan.state_slots) * each - shares.slots * plan.slot_bytes
    kv = kv_claim(made, plan, BLOCKS, CHUNK, habits, habits.kept.at(shares.states - 1))
    blocks = min(kv.most, left // kv.unit_bytes)
    if blocks < kv.least:
        return -1.0
    return experts_claim(made, plan.slot_bytes, LEAST, MOST).saved(shares.slots) + kv.saved(blocks)


PRESET = costs(model(recurrent=True))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(LEAST, MOST),
    st.integers(2, STATES),
    st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(sorted),
)
def test_no_other_division_saves_more(slots: int, states: int, kept: list[float]) -> None:
    curve = Curve(((0.0, 0.0), (2.0, kept[0]), (8.0, kept[1]), (24.0, kept[2])))
    habits = Habits(kept=curve)
    plan = budget(PRESET.facts, 2)
    best = saved(PRESET, plan, divided(PRESET, plan, habits=habits), habits)
    other = saved(PRESET, plan, Shares(slots, states), habits)
    # straight lines between the points of the experts' curve cost less than a thousandth
    assert best >= other * 0.999


def test_what_a_state_is_worth_decides_how_many_there_are() -> None:
    plan = budget(PRESET.facts, 2)
    counts = [
        divided(PRESET, plan, habits=Habits(kept=Curve(((0.0, 0.0), (full, 1.0))))).states
        for full in (1.0, 5.0, 20.0)
    ]
    assert counts == [2, 6, 21]
    worthless = Habits(kept=Curve(((0.0, 0.9),)))
    assert divided(PRESET, plan, habits=worthless).states == 2


def test_dear_states_are_fewer() -> None:
    facts = PRESET.facts
    huge = replace(
        facts,
        state=tuple(
            RecurrentNeed((32, 512, 512), (8192, 3)) if isinstance(s, RecurrentNeed) else s
            for s in facts.state
        ),
    )
    few = divided(replace(PRESET, facts=huge), budget(huge, 2)).states
    assert 2 <= few < divided(PRESET, budget(facts, 2)).states


def test_a_model_without_states_has_none() -> None:
    made = costs(model(recurrent=False))
    shares = divided(made, budget(made.facts, 0))
    assert shares.states == 0
    assert LEAST <= shares.slots < MOST


@pytest.mark.parametrize("saving", ["on", "off"])
def test_the_plan_charges_what_was_divided(saving: str) -> None:
    facts = model(recurrent=True)
    config = EngineConfig.of(
        **{
            "device": "emulated",
            "emulated.machine": "rtx5090-server",
            "memory.prefix_cache": saving,
            "schedule.max_sequences": 4,
        }
    )
    machine = on_preset(config, facts)
    plan = resolve(config, machine, facts)
    memory = plan.memory
    assert memory.used <= memory.free
    assert memory.state_bytes == memory.state_slots * facts.state_bytes_per_sequence()
    if saving == "off":
        assert memory.state_slots == 4
    else:
        assert 4 <= memory.state_slots <= 32
        assert plan.experts is not None
        assert "saved states" in plan.experts.slots.reason
