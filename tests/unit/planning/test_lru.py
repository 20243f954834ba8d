"""SlotTable and its policies against slow models that keep lists and recompute everything."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CapacityError
from headrace.planning.facts import ExpertKey
from headrace.planning.lru import Lru, Policy, SlotTable, shrink
from headrace.planning.policies import (
    DEFAULT_TERMS,
    LFU_TERMS,
    POLICIES,
    AtPrefill,
    Decayed,
    Fixed,
    Term,
    by_count,
    fade_of,
)
from headrace.planning.split import fill_all, fraction, plan_misses

EXPERTS = (5, 0, 3, 6)  # experts of each layer; the second is dense
MOE = tuple(layer for layer, count in enumerate(EXPERTS) if count)
ROWS = [ExpertKey(layer, e) for layer, count in enumerate(EXPERTS) for e in range(count)]
TERMS = (Term(5.0, 3), Term(1.5, 10))


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


class Slow:
    """Plans as the contract says it, over all rows each time; Python integers, no bookkeeping."""

    def __init__(self, capacity: int) -> None:
        self.slots: list[ExpertKey | None] = [None] * capacity

    def value(self, key: ExpertKey) -> int:
        raise NotImplementedError

    def touch(self, active: Collection[ExpertKey]) -> None:
        raise NotImplementedError

    def run(self, active: Collection[ExpertKey], wanted: int) -> list[tuple[ExpertKey, int]]:
        """(expert, slot) of each fill."""
        misses = sorted(set(active) - set(self.slots))
        misses.sort(key=self.value, reverse=True)
        self.touch(active)
        room = [slot for slot, key in enumerate(self.slots) if key is None]
        lying = [(self.value(key), key, slot) for slot, key in enumerate(self.slots) if key]
        room += [slot for _, key, slot in sorted(lying) if key not in active]
        fills = list(zip(misses[:wanted], room, strict=False))
        for key, slot in fills:
            self.slots[slot] = key
        return fills


class SlowLru(Slow):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.clock, self.last = 0, dict.fromkeys(ROWS, 0)

    def value(self, key: ExpertKey) -> int:
        return self.last[key]

    def touch(self, active: Collection[ExpertKey]) -> None:
        self.clock += 1
        self.last |= dict.fromkeys(active, self.clock)


class SlowDecayed(Slow):
    def __init__(self, capacity: int, terms: Sequence[Term]) -> None:
        super().__init__(capacity)
        self.terms = terms
        self.sums = {key: [0] * len(terms) for key in ROWS}

    def value(self, key: ExpertKey) -> int:
        return sum(t.weight * part for t, part in zip(self.terms, self.sums[key], strict=True))

    def touch(self, active: Collection[ExpertKey]) -> None:
        (layer,) = {key.layer for key in active}
        for key in ROWS:
            if key.layer == layer:
                for i, term in enumerate(self.terms):
                    kept = self.sums[key][i] * round(2**24 * 2 ** (-1 / term.half_life)) >> 24
                    self.sums[key][i] = kept + (key in active) * 2**32


def check_equal(
    decode: list[list[list[ExpertKey]]], slots: SlotTable, slow: Slow, share: float
) -> None:
    for step in decode:
        slots.begin_step()
        for active in step:
            lying = slots.residents()
            plan = plan_misses(active, slots, fraction(share))
            misses = len(set(active) - lying.keys())
            fills = slow.run(active, int(misses * share + 0.5))
            assert [(fill.key, fill.slot) for fill in plan.fills] == fills
            assert list(plan.hits) == sorted(set(active) & lying.keys())
            assert list(plan.host) == sorted(
                set(active) - set(plan.hits) - {key for key, _ in fills}
            )
            assert slots.policy.values([row(key) for key in ROWS]) == [slow.value(k) for k in ROWS]
            assert slots.residents() == {key: i for i, key in enumerate(slow.slots) if key}
            slots.check()


@given(steps(), st.integers(1, len(ROWS)), st.floats(0, 1))
def test_lru_is_exact(decode: list[list[list[ExpertKey]]], capacity: int, share: float) -> None:
    check_equal(decode, SlotTable(EXPERTS, capacity, Lru()), SlowLru(capacity), share)


@given(
    steps(),
    st.integers(1, len(ROWS)),
    st.floats(0, 1),
    st.sampled_from([DEFAULT_TERMS, LFU_TERMS, TERMS, (Term(0.5, 1),)]),
)
def test_decayed_is_exact(
    decode: list[list[list[ExpertKey]]], capacity: int, share: float, terms: tuple[Term, ...]
) -> None:
    slots = SlotTable(EXPERTS, capacity, Decayed("d", EXPERTS, terms))
    check_equal(decode, slots, SlowDecayed(capacity, terms), share)


def test_a_long_run_of_lru_is_exact() -> None:
    """Long enough for the order to be rebuilt, with rows that come and go."""
    rng = random.Random(5)
    slots, slow = SlotTable((40,), 12, Lru()), SlowLru(12)
    slow.last = {ExpertKey(0, e): 0 for e in range(40)}
    for _ in range(400):
        active = [ExpertKey(0, min(39, int(rng.expovariate(0.15)))) for _ in range(4)]
        active = list(dict.fromkeys(active))
        plan = plan_misses(active, slots, fill_all)
        assert [(fill.key, fill.slot) for fill in plan.fills] == slow.run(active, len(active))
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
    values = slots.policy.values(range(len(ROWS)))
    held = [row(lying[slot]) if slot in lying else -1 for slot in range(room)]
    done = slots.resize(capacity)
    if not slots.policy.fixed:  # the same from a device's arrays
        planned = shrink(values, held, capacity)
        assert [ROWS[r] for r in planned.evicted] == list(done.evicted)
        assert tuple(planned.moves) == done.moves
        found = {ROWS[r]: slot for slot, r in enumerate(planned.row_of_slot) if r >= 0}
        assert found == slots.residents()
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
    with pytest.raises(CapacityError, match="at least 1"):
        shrink([0] * 4, [1, -1], capacity)


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
    assert values[0] == pytest.approx(even.values([0])[0], rel=1e-5)
    assert 0 < values[1] < 0.1 * 2**32
    assert values[2] == 0


@given(
    st.dictionaries(st.integers(0, 2), st.integers(0, 1000)),
    st.integers(1000, 1_000_000),
    st.sampled_from([DEFAULT_TERMS, LFU_TERMS]),
)
def test_a_prompt_fades_as_its_integers_say(
    counts: dict[int, int], tokens: int, terms: tuple[Term, ...]
) -> None:
    policy = Decayed("d", (3,), terms)
    sums = [[0] * len(terms) for _ in range(3)]
    for used in ([0, 1], [0], [0, 2]):
        policy.touch(used)
        for r, part in enumerate(sums):
            part[:] = [
                (part[i] * term.keep_q24 >> 24) + (r in used) * 2**32
                for i, term in enumerate(terms)
            ]
    for read in (3, tokens):
        fade = fade_of(read, terms)
        policy.prefilled(counts, read)
        for r, part in enumerate(sums):
            for i in range(len(terms)):
                faded = part[i] * fade.left_q24[i] >> 24
                part[i] = faded + counts.get(r, 0) * fade.gain_q32[i]
    assert policy.values([0, 1, 2]) == [
        sum(term.weight * part[i] for i, term in enumerate(terms)) for part in sums
    ]


def test_the_longest_prompt_on_the_longest_half_life_does_not_overflow() -> None:
    policy = Decayed("d", (2,), LFU_TERMS)
    for _ in range(3):
        policy.prefilled({0: 1 << 20}, tokens=1 << 20)
    assert policy.values([0, 1]) == [pytest.approx(2**32 / (1 - 2 ** (-1 / 128)), rel=1e-3), 0]


def test_values_end_at_zero() -> None:
    policy = Decayed("d", (2,), (Term(0.5, 1),))
    policy.touch([0])
    for _ in range(400):
        policy.touch([1])
    assert policy.values([0]) == [0]


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
