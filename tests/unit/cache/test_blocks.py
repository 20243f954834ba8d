"""BlockPool against a plain dictionary of counts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.cache.blocks import BlockPool

COUNT, FIRST = 9, 3


class PoolAgainstCounts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(COUNT, first=FIRST)
        self.counts = dict.fromkeys(range(FIRST, FIRST + COUNT), 0)
        self.contents: dict[int, int] = {}  # what a holder wrote behind each number
        self.written = 0

    def held(self) -> list[int]:
        return [n for n, count in self.counts.items() if count]

    @rule(n=st.integers(0, COUNT))
    def take(self, n: int) -> None:
        if n > self.pool.free:
            with pytest.raises(AssertionError):
                self.pool.take(n)
            return
        taken = self.pool.take(n)
        assert len(set(taken)) == n
        for number in taken:
            assert self.counts[number] == 0
            self.counts[number] = 1
            self.written += 1
            self.contents[number] = self.written

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        if held := self.held():
            numbers = data.draw(st.lists(st.sampled_from(held), max_size=4))
            self.pool.share(numbers)
            for number in numbers:
                self.counts[number] += 1

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if held := self.held():
            number = data.draw(st.sampled_from(held))
            self.pool.release([number])
            self.counts[number] -= 1

    @rule(count=st.integers(0, 2 * COUNT))
    def resize(self, count: int) -> None:
        if count < len(self.held()):
            with pytest.raises(AssertionError):
                self.pool.resize(count)
            return
        end = FIRST + count
        beyond = {n for n in self.held() if n >= end}
        moves = self.pool.resize(count)
        assert moves.keys() == beyond, "what can stay stays"
        # Contents are moved one after the other, so nothing may be overwritten before it is read.
        assert not any(self.counts.get(new) for new in moves.values())
        assert len(set(moves.values())) == len(moves)
        assert all(FIRST <= new < end for new in moves.values())
        old = self.counts
        self.counts = {n: old.get(n, 0) for n in range(FIRST, end)}
        for source, to in moves.items():
            self.counts[to] = old[source]
            self.contents[to] = self.contents[source]

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert self.pool.used == len(self.held())
        assert self.pool.free == self.pool.count - len(self.held())
        assert self.pool.count == len(self.counts)
        contents = [self.contents[n] for n in self.held()]
        assert len(set(contents)) == len(contents), "two holders see one block"
        for number, count in self.counts.items():
            assert self.pool.holders(number) == count


TestPoolAgainstCounts = PoolAgainstCounts.TestCase
TestPoolAgainstCounts.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


def test_lower_numbers_are_never_handed_out() -> None:
    assert sorted(BlockPool(4, first=2).take(4)) == [2, 3, 4, 5]


def test_misuse_is_caught() -> None:
    pool = BlockPool(2)
    (taken,) = pool.take(1)
    pool.release([taken])
    with pytest.raises(AssertionError):
        pool.release([taken])
    with pytest.raises(AssertionError):
        pool.share([taken])
    with pytest.raises(AssertionError):
        pool.holders(7)


def test_new_numbers_come_after_the_old_ones() -> None:
    """Their pages are touched last."""
    pool = BlockPool(3, first=1)
    assert pool.take(2) == (1, 2)
    assert pool.resize(6) == {}
    assert pool.take(4) == (3, 4, 5, 6)
    pool.release([1, 4, 2])
    assert pool.resize(3) == {5: 1, 6: 2}
    assert pool.take(0) == ()
    assert pool.used == 3
    pool.check()


def test_check_finds_a_leak() -> None:
    pool = BlockPool(3)
    pool.take(1)
    pool._free.append(0)
    with pytest.raises(AssertionError):
        pool.check()
