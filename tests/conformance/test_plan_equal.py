"""Whatever plans a layer decides alike, bit for bit: the plain planner that the simulator replays,
the reference, native code, and the device kernel in Triton's interpreter.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import plans
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import UNWRITTEN, Call, Run, Script, Snapshot

from headrace.planning.facts import ExpertKey
from headrace.planning.lru import Lru, SlotTable
from headrace.planning.policies import DEFAULT_TERMS, Decayed
from headrace.planning.split import MissPlan, from_table, plan_misses

IMPLEMENTATIONS = {"native": plans.native, "triton": plans.interpreted}
EXAMPLES = {"native": 60, "triton": 5}  # the interpreter takes a tenth of a second for each call


@pytest.fixture(scope="module", params=list(IMPLEMENTATIONS))
def implementation(request: pytest.FixtureRequest) -> Iterator[tuple[str, Run]]:
    with IMPLEMENTATIONS[request.param]() as run:
        yield request.param, run


def prompt(draw: st.DrawFn, experts: int, tokens: int) -> tuple[tuple[int, ...], ...]:
    return tuple((draw(st.integers(-1, experts - 1)),) for _ in range(tokens))


@st.composite
def scripts(draw: st.DrawFn, *, most: int = 33, calls: int = 9, plain: bool = False) -> Script:
    """`plain`: what the plain planner takes. No staging, and a prompt is of all layers at once."""
    experts = tuple(draw(st.lists(st.integers(2, most), min_size=1, max_size=3)))
    made = []
    for _ in range(draw(st.integers(1, calls))):
        layer = draw(st.integers(0, len(experts) - 1))
        tokens, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        expert = st.integers(-1, experts[layer] - 1)
        ids = tuple(draw(st.tuples(*[expert] * width)) for _ in range(tokens))
        quota = [draw(st.integers(0, misses)) for misses in range(draw(st.integers(2, 12)))]
        kind = draw(st.sampled_from(["plan"] * 5 + ["observe"] + ["stage"] * (not plain)))
        staging = draw(st.integers(1, 8)) if kind == "stage" else 0
        if plain and kind == "observe":
            made += [
                Call(i, prompt(draw, n, tokens), (), observed=True) for i, n in enumerate(experts)
            ]
        elif not plain or max(map(max, ids)) >= 0:
            made.append(Call(layer, ids, tuple(quota), staging, kind == "observe"))
    slots = draw(st.integers(1, sum(experts) + 2))
    return Script(experts, slots, draw(st.booleans()), tuple(made))


def differing(ours: list[Snapshot], theirs: list[Snapshot]) -> list[str]:
    return [
        f"call {i}: {name} {mine[name]} instead of {other[name]}"
        for i, (mine, other) in enumerate(zip(ours, theirs, strict=True))
        for name in other
        if mine[name] != other[name]
    ]


def test_as_the_reference(implementation: tuple[str, Run]) -> None:
    name, run = implementation

    @settings(max_examples=EXAMPLES[name])
    @given(scripts(most=33 if name == "native" else 12))
    def check(script: Script) -> None:
        assert differing(run(script), plans.by_reference(script)) == []

    check()


def long_script(*, lru: bool, experts: int, tokens: int, calls: int) -> Script:
    """More slots than a block of the kernel holds, prompts, small and large batches."""
    rng = random.Random(experts + tokens)
    made = []
    for i in range(calls):
        some = rng.choice([1, tokens])
        ids = tuple(tuple(rng.sample(range(experts), 8)) for _ in range(some))
        quota = tuple(m * 3 // 4 for m in range(20))
        made.append(Call(i % 3, ids, quota, staging=(i % 7 == 6) * 5, observed=i % 5 == 4))
    return Script((experts,) * 3, 2 * experts, lru, tuple(made))


@pytest.mark.parametrize("lru", [False, True])
def test_a_large_cache(implementation: tuple[str, Run], *, lru: bool) -> None:
    name, run = implementation
    calls = 40 if name == "native" else 14
    script = long_script(lru=lru, experts=64, tokens=6, calls=calls)
    assert differing(run(script), plans.by_reference(script)) == []


@given(scripts(plain=True, calls=20))
def test_the_plain_planner_is_the_reference(script: Script) -> None:
    """Placements, order and values; the plain planner has no ids to rewrite."""
    policy = Lru() if script.lru else Decayed("d", script.experts, DEFAULT_TERMS)
    slots = SlotTable(script.experts, script.slots, policy)
    prompts: dict[ExpertKey, int] = {}
    for call, seen in zip(script.calls, plans.by_reference(script), strict=True):
        flat = [e for row in call.ids for e in row]
        uses = Counter(ExpertKey(call.layer, e) for e in flat if e >= 0)
        if call.observed:
            prompts |= uses
            if call.layer < len(script.experts) - 1:
                continue
            slots.prefilled(prompts, len(call.ids))
            prompts = {}
        else:
            plan = plan_misses(list(uses), slots, from_table(call.quota))
            check_plan(plan, slots, flat, seen)
        rows = range(script.base[-1])
        held = {script.base[k.layer] + k.expert: slot for k, slot in slots.residents().items()}
        assert seen["slot_of_R"] == [held.get(row, -1) for row in rows]
        assert seen["value_R"] == policy.values(rows)
        slots.check()


def shift_of(layer: int, expert: int) -> int:
    """As the scripts have it: rows of every second layer have three forms."""
    return expert % 3 * 1000 if layer % 2 else 0


def check_plan(plan: MissPlan, slots: SlotTable, flat: list[int], seen: Snapshot) -> None:
    fills, host = len(plan.fills), {key.expert for key in plan.host}
    active = fills + len(host) + len(plan.hits)
    assert seen["counts_4"] == [active, len(plan.hits), fills, len(host)]
    assert seen["fill_experts_E"][:fills] == [fill.key.expert for fill in plan.fills]
    assert seen["fill_slots_E"][:fills] == [fill.slot for fill in plan.fills]
    assert set(seen["fill_experts_E"][fills:] + seen["fill_slots_E"][fills:]) <= {UNWRITTEN}
    layer = [*plan.hits, *plan.host, *(fill.key for fill in plan.fills)][0].layer
    where = [(e, slots.slot(ExpertKey(layer, e)) if e >= 0 else None) for e in flat]
    told = [-1 if slot is None else slot + shift_of(layer, e) for e, slot in where]
    assert seen["slot_ids_TX"] == told
    assert seen["host_ids_TX"] == [e if e in host else -1 for e in flat]
