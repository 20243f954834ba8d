"""SlotTable and its policies against slow models that keep lists and recompute everything."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CapacityError
from headrace.planning.facts import ExpertKey
from headrace.planning.lru import Lru, Policy, SlotTable
from headrace.planning.policies import POLICIES, AtPrefill, Decayed, Fixed, Term, by_count
from headrace.planning.split import fill_all, fraction, plan_misses

EXPERTS = (5, 0, 3, 6)  # experts of each layer; the second is dense
MOE = tuple(layer for layer, count in enumerate(EXPERTS) if count)
ROWS = [ExpertKey(layer, e) for layer, count in enumerate(EXPERTS) for e in range(count)]
TERMS = (Term(5.0, 0.3), Term(1.5, 1.0))


def row(key: ExpertKey) -> int:
    return ROWS.index(key)


@st.composite
def steps(draw: st.DrawFn) -> list[list[list[ExpertKey]]]:
    """Decode steps; each touches every MoE layer once, in order."""
    return [
        [
            [
                ExpertKey(layer, e)
                for e in draw(
                    st.lists(
                        st.integers(0, EXPERTS[layer] - 1), min_size=1, max_size=3, unique=True
                    )
                )
            ]
            for layer in MOE
        ]
        for _ in range(draw(st.integers(1, 12)))
    ]


class SlowLru:
    """A list, most recent last."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.rows = capacity, list[ExpertKey]()

    def run(self, active: Sequence[ExpertKey]) -> list[ExpertKey]:
        hits = [key for key in active if key in self.rows]
        for key in hits:
            self.rows.remove(key)
            self.rows.append(key)
        for key in active:
            if key in hits:
                continue
            if len(self.rows) == self.capacity:
                free = [r for r in self.rows if r not in active]
                if not free:
                    continue
                self.rows.remove(free[0])
            self.rows.append(key)
        return hits


class SlowDecayed:
    """Every use ever, summed up anew for each decision."""

    def __init__(self, capacity: int, terms: Sequence[Term]) -> None:
        self.capacity, self.terms = capacity, terms
        self.visits = dict.fromkeys(MOE, 0)
        self.uses: dict[ExpertKey, list[int]] = {key: [] for key in ROWS}
        self.rows: list[ExpertKey] = []

    def value(self, key: ExpertKey) -> float:
        now = self.visits[key.layer]
        return sum(
            term.weight * 2 ** (-(now - use) / term.half_life)
            for use in self.uses[key]
            for term in self.terms
        )

    def touch(self, active: Sequence[ExpertKey]) -> None:
        self.visits[active[0].layer] += 1
        for key in active:
            self.uses[key].append(self.visits[key.layer])


@given(steps(), st.integers(1, len(ROWS)))
def test_lru_is_exact(decode: list[list[list[ExpertKey]]], capacity: int) -> None:
    slots, slow = SlotTable(EXPERTS, capacity, Lru()), SlowLru(capacity)
    for step in decode:
        slots.begin_step()
        for active in step:
            plan = plan_misses(active, slots, fill_all)
            assert list(plan.hits) == slow.run(active)
            assert set(slots.residents()) == set(slow.rows)
            slots.check()


@given(steps(), st.integers(1, len(ROWS)), st.sampled_from([TERMS, TERMS[:1], (Term(100.0, 1.0),)]))
def test_decayed_evicts_the_least_valuable(
    decode: list[list[list[ExpertKey]]], capacity: int, terms: tuple[Term, ...]
) -> None:
    slots = SlotTable(EXPERTS, capacity, Decayed("d", EXPERTS, terms))
    slow = SlowDecayed(capacity, terms)
    for step in decode:
        slots.begin_step()
        for active in step:
            before = set(slots.residents())
            plan = plan_misses(active, slots, fill_all)
            slow.touch(active)
            gone = [fill.evicted for fill in plan.fills if fill.evicted is not None]
            stayed = before - set(gone) - set(active)
            for out in gone:
                assert out not in active
                assert all(slow.value(out) <= slow.value(key) + 1e-9 for key in stayed)
            assert [slow.value(key) for key in active] == pytest.approx(
                slots.policy.values([row(key) for key in active])
            )
            slots.check()


@pytest.mark.parametrize("name", list(POLICIES))
@given(decode=steps(), share=st.floats(0, 1), data=st.data())
def test_every_policy_keeps_its_books(
    name: str, decode: list[list[list[ExpertKey]]], share: float, data: st.DataObject
) -> None:
    policy = POLICIES[name](EXPERTS, {0: 3, 7: 1})
    slots = SlotTable(EXPERTS, data.draw(st.integers(1, len(ROWS))), policy)
    for step in decode:
        lying = dict(slots.residents())
        slots.begin_step()
        for active in step:
            plan = plan_misses(active, slots, fraction(share))
            filled = [fill.key for fill in plan.fills]
            assert sorted([*plan.hits, *filled, *plan.host]) == sorted(active)
            for fill in plan.fills:
                assert lying.get(fill.evicted) in (None, fill.slot)  # type: ignore[arg-type]
                lying.pop(fill.evicted, None)  # type: ignore[arg-type]
                lying[fill.key] = fill.slot
            assert slots.residents() == lying
            slots.check()
        if data.draw(st.booleans()):
            slots.prefilled(dict.fromkeys(step[0], 2), tokens=2)
            slots.check()
        _resize(slots, data.draw(st.integers(1, len(ROWS))))


def _resize(slots: SlotTable, capacity: int) -> None:
    """Copies by `moves` what lay in each slot, and finds every survivor where the table says."""
    lying = {slot: key for key, slot in slots.residents().items()}
    room = slots.capacity
    done = slots.resize(capacity)
    for key in done.evicted:
        del lying[next(slot for slot, k in lying.items() if k == key)]
    for source, target in done.moves:
        assert target not in lying
        assert target < room
        lying[target] = lying.pop(source)
    assert {key: slot for slot, key in lying.items()} == slots.residents()
    assert len(slots) <= slots.capacity == capacity
    slots.check()


def test_a_resize_keeps_the_most_valuable() -> None:
    slots = SlotTable((6,), 6, Decayed("d", (6,), TERMS))
    for used in ([0, 1, 2], [2, 3, 4], [2, 4, 5], [2, 4]):
        slots.begin_step()
        plan_misses([ExpertKey(0, e) for e in used], slots, fill_all)
    assert set(slots.resize(2).evicted) == {ExpertKey(0, e) for e in (0, 1, 3, 5)}
    assert slots.resize(6).evicted == ()


@pytest.mark.parametrize("capacity", [0, -1])
def test_no_slots_are_refused_and_nothing_changes(capacity: int) -> None:
    slots = SlotTable((4,), 2, Lru())
    plan_misses([ExpertKey(0, 1)], slots, fill_all)
    with pytest.raises(CapacityError, match="at least 1"):
        slots.resize(capacity)
    assert (len(slots), slots.capacity) == (1, 2)
    slots.check()


def test_rows_ahead_of_the_step_outlive_rows_behind_it() -> None:
    """Both were used in the last step only; the row of layer 0 has just had its chance."""
    policy = Decayed("d", (2, 2, 2), TERMS)
    slots = SlotTable((2, 2, 2), 3, policy)
    for layer in range(3):
        plan_misses([ExpertKey(layer, 0)], slots, fill_all)
    slots.begin_step()
    plan = plan_misses([ExpertKey(0, 0)], slots, fill_all)
    plan = plan_misses([ExpertKey(1, 1)], slots, fill_all)
    assert plan.fills[0].evicted == ExpertKey(1, 0)
    lru = SlotTable((2, 2, 2), 3, Lru())
    for layer in range(3):
        plan_misses([ExpertKey(layer, 0)], lru, fill_all)
    # Plain LRU takes what comes next instead.
    assert plan_misses([ExpertKey(0, 1)], lru, fill_all).fills[0].evicted == ExpertKey(0, 0)
    assert plan_misses([ExpertKey(0, 0)], lru, fill_all).fills[0].evicted == ExpertKey(1, 0)


def test_a_prompt_counts_as_steps_of_its_tokens() -> None:
    even = Decayed("d", (3,), TERMS)
    for _ in range(40):
        even.touch([0])
    at_once = Decayed("d", (3,), TERMS)
    at_once.touch([1])
    at_once.prefilled({0: 40}, tokens=40)
    values = at_once.values([0, 1, 2])
    assert values[0] == pytest.approx(even.values([0])[0])
    assert 0 < values[1] < 0.01
    assert values[2] == 0


def test_values_never_become_slow_numbers() -> None:
    policy = Decayed("d", (2,), (Term(0.5, 1.0),))
    policy.touch([0])
    for _ in range(400):
        policy.touch([1])
    assert policy.values([0]) == [0.0]


def test_fixed_sets() -> None:
    counts = {0: 1, 2: 9, 3: 5, 4: 4, 5: 8}
    assert by_count((3, 3), counts) == [2, 5, 3, 4, 0, 1]
    assert by_count((3, 3), counts, per_layer=True) == [2, 5, 0, 3, 1, 4]
    fixed: Policy = Fixed("f", by_count((3, 3), counts))
    slots = SlotTable((3, 3), 2, fixed)
    assert set(slots.residents()) == {ExpertKey(0, 2), ExpertKey(1, 2)}
    assert plan_misses([ExpertKey(0, 0)], slots, fill_all).fills == ()


def test_at_prefill_follows_each_prompt() -> None:
    slots = SlotTable((4, 4), 2, AtPrefill("p", (4, 4)))
    placed = slots.prefilled({ExpertKey(0, 3): 5, ExpertKey(0, 1): 2, ExpertKey(1, 2): 1}, tokens=6)
    assert set(slots.residents()) == {ExpertKey(0, 3), ExpertKey(1, 2)}
    assert {p.evicted for p in placed} == {ExpertKey(0, 0), ExpertKey(1, 0)}
    slots.prefilled({ExpertKey(0, 3): 1, ExpertKey(1, 0): 1}, tokens=1)
    assert set(slots.residents()) == {ExpertKey(0, 3), ExpertKey(1, 0)}
