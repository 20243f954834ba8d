"""The prefix cache alone, against a dictionary of what was computed under which tokens.

Blocks and state slots are played by lists: what they hold tells for which beginning it is right.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.cache.anchors import Cuts
from headrace.cache.blocks import BlockPool
from headrace.cache.prefix import Lease, PrefixCache


class Run:
    """A running sequence."""

    def __init__(self, tokens: list[int], lease: Lease, computed: int) -> None:
        self.tokens, self.lease, self.computed = tokens, lease, computed


class CacheAgainstLists(RuleBasedStateMachine):
    """`cells[block]`: the sequence up to each token of a block; `states[slot]`: up to its end."""

    @initialize(
        blocks=st.integers(4, 24),
        slots=st.integers(1, 6),
        size=st.integers(1, 4),
        recurrent=st.booleans(),
    )
    def start(self, blocks: int, slots: int, size: int, recurrent: bool) -> None:
        self.size, self.recurrent = size, recurrent
        self.slots = slots
        self.cache = PrefixCache(
            BlockPool(blocks, first=1), BlockPool(slots if recurrent else 0), size, on=True
        )
        self.cells: dict[int, list[tuple[int, ...] | None]] = {}
        self.states: dict[int, tuple[int, ...]] = {}
        self.running: list[Run] = []
        self.done: list[tuple[int, ...]] = []  # of all that ever was computed

    def copy(self) -> None:
        copies = self.cache.copies()
        for old, new in copies.blocks:
            self.cells[new] = list(self.cells.get(old, [None] * self.size))
        for old, new in copies.states:
            self.states[new] = self.states[old]

    def compute(self, run: Run, n: int) -> None:
        """Reads all that came before, then writes."""
        for i in range(run.computed):
            cell = self.cells[run.lease.blocks[i // self.size]][i % self.size]
            assert cell == tuple(run.tokens[: i + 1])
        if self.recurrent:
            assert self.states.get(run.lease.state, ()) == tuple(run.tokens[: run.computed])
        for i in range(run.computed, run.computed + n):
            cells = self.cells.setdefault(run.lease.blocks[i // self.size], [None] * self.size)
            cells[i % self.size] = tuple(run.tokens[: i + 1])
        run.computed += n
        if self.recurrent:
            self.states[run.lease.state] = tuple(run.tokens[: run.computed])

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=14), data=st.data())
    def begin(self, tokens: list[int], data: st.DataObject) -> None:
        if self.done and data.draw(st.booleans()):
            old = data.draw(st.sampled_from(self.done))
            tokens = [*old[: data.draw(st.integers(0, len(old)))], *tokens]
        found = self.cache.match(tokens)
        assert found.tokens < len(tokens)
        ended = max((_common(tokens[:-1], old) for old in self.done), default=0)
        begun = (tuple(run.tokens[: run.computed]) for run in self.running)
        best = max((_common(tokens[:-1], old) for old in begun), default=0)
        assert found.tokens <= max(ended, best)
        if not self.recurrent and not self.cache.evictions:
            assert found.tokens >= ended
        need = -(-len(tokens) // self.size)
        if need - len(found.path) > self.cache.spare_beside(found):
            return
        if self.recurrent and not self.cache.spare_states:
            return
        lease = self.cache.begin(found, need)
        self.copy()
        if found.tokens == 0 and self.recurrent:
            self.states[lease.state] = ()
        self.running.append(Run(tokens, lease, found.tokens))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), save=st.booleans(), more=st.lists(st.integers(0, 2), max_size=3))
    def step(self, data: st.DataObject, save: bool, more: list[int]) -> None:
        run = data.draw(st.sampled_from(self.running))
        run.tokens += more
        n = data.draw(st.integers(0, len(run.tokens) - run.computed))
        if not self.cache.grow(run.lease, -(-(run.computed + n) // self.size)):
            return
        self.compute(run, n)
        self.cache.keep(run.lease, run.tokens, run.computed)
        if save:
            self.cache.save(run.lease, run.tokens, run.computed)
        self.copy()
        self.compute(run, 0)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), valid=st.booleans())
    def finish(self, data: st.DataObject, valid: bool) -> None:
        run = data.draw(st.sampled_from(self.running))
        self.running.remove(run)
        if not valid and self.recurrent:
            self.states[run.lease.state] = (-1,)
        self.cache.release(run.lease, run.tokens, run.computed, state_valid=valid)
        self.done.append(tuple(run.tokens[: run.computed]))

    @rule(change=st.integers(-3, 3))
    def resize(self, change: int) -> None:
        cache = self.cache
        count = max(1, cache.blocks.count + change)
        if cache.blocks.used - cache.idle_blocks > count:
            return
        cache.make_free(cache.blocks.count - count)
        moves = cache.blocks.resize(count)
        slots = {}
        if self.recurrent:
            n = max(1, self.slots - (change > 0), cache.states.used - len(cache.checkpoints))
            cache.free_states(cache.states.count - n)
            slots = cache.states.resize(n)
        cache.renamed(moves, slots)
        for run in self.running:
            run.lease.rename(moves, slots)
        for old, new in moves.items():
            self.cells[new] = self.cells.get(old, [None] * self.size)
        for old, new in slots.items():
            self.states[new] = self.states.get(old, ())

    @rule(n=st.integers(0, 8))
    def lend(self, n: int) -> None:
        """Somebody else writes into what is spare."""
        n = min(n, self.cache.spare_blocks)
        taken = self.cache.take(n)
        for block in taken:
            self.cells[block] = [None] * self.size
        self.cache.blocks.release(taken)

    @invariant()
    def sound(self) -> None:
        self.cache.check([run.lease for run in self.running])

    def teardown(self) -> None:
        for run in self.running:
            self.cache.release(run.lease, run.tokens, run.computed, state_valid=True)
        self.cache.check([])
        self.cache.make_free(self.cache.blocks.count)
        self.cache.check([])
        assert self.cache.tree.count == self.cache.blocks.used == 0
        assert self.cache.states.used == len(self.cache.checkpoints) == 0


TestCacheAgainstLists = CacheAgainstLists.TestCase
TestCacheAgainstLists.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def _common(a: list[int], b: tuple[int, ...]) -> int:
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


def compute_all(cache: PrefixCache, tokens: list[int]) -> int:
    """One request from beginning to end; how much of it was cached."""
    found = cache.match(tokens)
    lease = cache.begin(found, -(-len(tokens) // cache.tree.block_tokens))
    cache.keep(lease, tokens, len(tokens))
    cache.release(lease, tokens, len(tokens), state_valid=True)
    cache.copies()
    return found.tokens


def test_side_requests_do_not_push_out_a_conversation() -> None:
    cache = PrefixCache(BlockPool(40, first=1), BlockPool(0), 4, on=True)
    talk = list(range(60))
    assert compute_all(cache, talk) == 0
    for turn in range(6):
        for side in range(4):  # each a tenth of the cache
            compute_all(cache, [1000 + 100 * turn + 20 * side + i for i in range(16)])
        talk += range(60 + 4 * turn, 64 + 4 * turn)
        assert compute_all(cache, talk) == len(talk) - 4


def test_a_state_is_kept_for_what_it_saves() -> None:
    cache = PrefixCache(BlockPool(600, first=1), BlockPool(3), 4, on=True)
    long, short = list(range(1000, 3000)), list(range(500, 508))
    compute_all(cache, long)
    compute_all(cache, short)
    compute_all(cache, [*range(600, 608)])
    compute_all(cache, [*range(700, 708)])
    assert cache.match([*long, 1]).tokens == 2000
    assert cache.match([*short, 1]).tokens == 0


@given(
    length=st.integers(1, 3000),
    anchors=st.lists(st.integers(0, 3200), max_size=12),
    spacing=st.integers(1, 1100),
)
def test_cuts(length: int, anchors: list[int], spacing: int) -> None:
    cuts = Cuts(length, anchors, spacing=spacing)
    at, seen = 0, []
    while at < length:
        at = cuts.next(at)
        assert at in cuts
        seen.append(at)
    assert tuple(seen) == cuts.positions
    inside = sorted({a for a in anchors if 0 < a < length})
    assert {*inside[:1], *inside[-2:], length} <= set(seen)
    # An edit anywhere in the prompt finds a state not far before it.
    assert all(b - a <= spacing + 256 for a, b in zip([0, *seen], seen, strict=False))
    assert cuts.next(length) == (length // spacing + 1) * spacing
    assert cuts.next(length) in cuts


def test_off_keeps_nothing() -> None:
    cache = PrefixCache(BlockPool(8, first=1), BlockPool(2), 4, on=False)
    assert [compute_all(cache, [1, 2, 3, 4, 5]) for _ in range(3)] == [0, 0, 0]
    assert cache.blocks.used == cache.states.used == 0


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_same_again_leaves_one_token_to_compute(recurrent: bool) -> None:
    cache = PrefixCache(BlockPool(8, first=1), BlockPool(4 if recurrent else 0), 4, on=True)
    compute_all(cache, [1, 2, 3, 4, 5, 6])
    # A state fits behind all six tokens only, where nothing would be left to compute.
    assert compute_all(cache, [1, 2, 3, 4, 5, 6]) == (0 if recurrent else 5)
    assert compute_all(cache, [1, 2, 3, 4, 5, 6, 7]) == 6
