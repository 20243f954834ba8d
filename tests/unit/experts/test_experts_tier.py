"""The book-keeping of rows in RAM against an obvious model: whatever is asked, dropped or fails,
each resident row lies where the table says, and no slot has two owners.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.errors import CheckpointError
from headrace.experts.foresight import LEAST_RIGHT, Foresight
from headrace.experts.reading import Coming, RowReader
from headrace.experts.tier import RowTier
from headrace.planning.facts import ExpertKey, ModelFacts
from headrace.planning.policies import POLICIES

EXPERTS = (5, 0, 7, 4)


def facts() -> ModelFacts:
    return ModelFacts(
        "test", 4, 8, 10, 64, (None,) * 4, EXPERTS, (2, 0, 2, 2), (96, 0, 96, 96), 4096, "float32"
    )


@dataclass
class Queue:
    hurried: list[int] = field(default_factory=list)

    def hurry(self, ticket: int) -> None:
        self.hurried.append(ticket)

    def done(self, ticket: int) -> bool:
        return True


@dataclass
class Reader:
    """Slots that hold keys instead of bytes."""

    stages: int
    slots: dict[int, ExpertKey | None] = field(default_factory=dict)
    failing: bool = False
    queue: Queue = field(default_factory=Queue)
    going: int = 0

    @property
    def ready(self) -> bool:
        return self.going < self.stages

    def start(self, key: ExpertKey, slot: int, *, urgent: bool) -> Coming:
        self.slots[slot] = None  # torn
        self.going += 1
        return Coming(key, slot, self.going, None)

    def finish(self, coming: Coming) -> None:
        self.going -= 1
        if self.failing:
            raise CheckpointError("torn")
        self.slots[coming.slot] = coming.key

    def drop(self, coming: Coming) -> None:
        self.going -= 1


def tier_of(reader: Reader, capacity: int, spare: int, policy: str = "lru") -> RowTier:
    made = POLICIES[policy](EXPERTS, {})
    return RowTier(cast(RowReader, reader), facts(), made, capacity=capacity, spare=spare)


class Rows(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.reader = Reader(3)
        self.tier = tier_of(self.reader, 4, 3, "recency-frequency")

    keys = st.sampled_from([ExpertKey(i, e) for i, n in enumerate(EXPERTS) for e in range(n)])

    @precondition(lambda self: self.tier.room)
    @rule(key=keys, urgent=st.booleans())
    def ask(self, key: ExpertKey, urgent: bool) -> None:
        if self.tier.slot(key) is None:
            self.tier.ask(key, urgent=urgent)
            assert self.tier.coming(key)

    @rule(data=st.data(), keep=st.booleans(), failing=st.booleans())
    def take(self, data: st.DataObject, keep: bool, failing: bool) -> None:
        layers = [layer for layer in range(4) if self.tier.awaited(layer)]
        if not layers:
            return
        layer = data.draw(st.sampled_from(layers))
        keys = self.tier.awaited(layer)
        self.reader.failing = failing
        slots: dict[ExpertKey, int] = {}
        for key in keys:
            if failing:
                with pytest.raises(CheckpointError):
                    self.tier.take(key)
            else:
                slots[key] = self.tier.take(key)
                assert self.reader.slots[slots[key]] == key
        if not slots:
            return
        self.tier.table.touch(list(slots))
        if keep:
            self.tier.keep(slots, list(slots))
        else:
            self.tier.leave(slots.values())

    @rule(keys=st.lists(keys, unique=True))
    def drop_some(self, keys: list[ExpertKey]) -> None:
        self.tier.drop([key for key in keys if self.tier.coming(key)])

    @rule()
    def drop_all(self) -> None:
        self.tier.drop()
        assert self.tier.room
        assert self.reader.going == 0

    @invariant()
    def residents_lie_where_the_table_says(self) -> None:
        self.tier.check()
        for key in self.tier.table.residents():
            slot = self.tier.slot(key)
            assert slot is not None
            assert self.reader.slots[slot] == key


Rows.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestRows = Rows.TestCase


def guess_of(ids: list[list[int]]) -> Any:
    return lambda layer, x: None if layer == 3 else torch.tensor(ids, dtype=torch.int32)


def test_foresight_asks_for_what_is_missing_best_first() -> None:
    reader = Reader(9)
    tier = tier_of(reader, 2, 2)
    for key in (ExpertKey(2, 1),):
        tier.ask(key, urgent=True)
        tier.keep({key: tier.take(key)}, [key])
    ahead = Foresight(tier, guess_of([[1, 4, 0, 3]]))
    ahead.look(0, torch.zeros(1, 8))
    assert tier.awaited(2) == [ExpertKey(2, 4), ExpertKey(2, 0)]  # two slots are spare
    ahead.judge(2, [ExpertKey(2, 1), ExpertKey(2, 4)])
    assert (ahead.guesses, ahead.right, ahead.asked) == (3, 1, 2)
    ahead.look(3, torch.zeros(1, 8))  # the last layer
    assert ahead.asked == 2


def test_bad_guesses_are_held_back_until_they_are_better() -> None:
    tier = tier_of(Reader(9), 2, 2)
    ahead = Foresight(tier, guess_of([[5]]))

    def step(used: int) -> bool:
        tier.drop()
        asked = ahead.asked
        ahead.look(0, torch.zeros(1, 8))
        ahead.judge(2, [ExpertKey(2, used)])
        return ahead.asked > asked

    assert step(0)
    while step(0):
        pass
    assert ahead.status()["layers_held_back"] == 1
    assert ahead.right == 0
    assert ahead.guesses < 30
    assert not step(5)
    for _ in range(30):
        step(5)
    assert step(5)
    assert ahead.status()["right"] / ahead.status()["guesses"] > LEAST_RIGHT


def test_always_means_always() -> None:
    tier = tier_of(Reader(9), 2, 2)
    ahead = Foresight(tier, guess_of([[5]]), always=True)
    for _ in range(50):
        tier.drop()
        ahead.look(0, torch.zeros(1, 8))
        ahead.judge(2, [])
    assert ahead.asked == 50
    assert ahead.status()["layers_held_back"] == 0
