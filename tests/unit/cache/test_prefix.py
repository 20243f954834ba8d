"""The prefix cache alone, against a dictionary of what was computed under which tokens.

Blocks and state slots are played by lists: what they hold tells for which beginning it is right.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.cache.anchors import Cuts
from headrace.cache.blocks import BlockPool, Table
from headrace.cache.lease import Lease
from headrace.cache.prefix import PrefixCache
from headrace.planning.windows import Window, blocks_each

# What happens is left to chance, as often as not to what matters.
CHANCE = st.randoms(use_true_random=True)
STEP = 6  # tokens of a step of a model with windows
Cells = dict[int, list[tuple[int, ...] | None]]


class Run:
    """A running sequence."""

    def __init__(self, tokens: list[int], lease: Lease, computed: int) -> None:
        self.tokens, self.lease, self.computed = tokens, lease, computed


class CacheAgainstLists(RuleBasedStateMachine):
    """`cells[block]`: the sequence up to each token of a block, and so for each size of window;
    `states[slot]`: up to its end."""

    @initialize(
        blocks=st.integers(4, 24),
        slots=st.integers(1, 6),
        size=st.integers(1, 4),
        recurrent=st.booleans(),
        windows=st.one_of(st.just(set()), st.sets(st.integers(1, 9), max_size=2)),
        host=st.tuples(st.sampled_from((0, 0, 2, 5, 30)), st.sampled_from((0, 1, 3))),
    )
    def start(
        self,
        blocks: int,
        slots: int,
        size: int,
        recurrent: bool,
        windows: set[int],
        host: tuple[int, int],
    ) -> None:
        self.size, self.recurrent = size, recurrent or bool(windows)
        recurrent = self.recurrent
        self.slots = slots
        self.windows = sorted(windows)
        self.cache = PrefixCache(
            BlockPool(blocks, first=1),
            BlockPool(slots if recurrent else 0),
            size,
            on=True,
            host_blocks=host[0],
            host_states=host[1],
            windows=[Window(w, blocks_each(w, size, 99), -(-STEP // size)) for w in self.windows],
        )
        self.cells: Cells = {}
        self.seen: dict[int, Cells] = {window: {} for window in self.windows}
        self.states: dict[int, tuple[int, ...]] = {}
        self.running: list[Run] = []
        self.done: list[tuple[int, ...]] = []  # of all that ever was computed

    def copy(self) -> None:
        copies = self.cache.copies()
        for old, new in copies.blocks:
            self.cells[new] = list(self.cells.get(old, [None] * self.size))
        for old, new in copies.states:
            self.states[new] = self.states[old]
        for window, pairs in copies.windows.items():
            for old, new in pairs:
                self.seen[window][new] = list(self.seen[window].get(old, [None] * self.size))

    def tables(self, run: Run) -> list[tuple[int, Table, Cells]]:
        """Those of windows, and as the last one that of the whole context."""
        kinds = zip(self.windows, run.lease.windows, strict=True)
        whole = (99, Table(0, run.lease.blocks), self.cells)
        return [*((w, table, self.seen[w]) for w, table in kinds), whole]

    def compute(self, run: Run, n: int) -> None:
        """Reads all that came before, then writes; states on the way go to their slots."""
        for window, (first, blocks), cells in self.tables(run):
            for i in range(max(0, run.computed - window + 1), run.computed):
                cell = cells[blocks[i // self.size - first]][i % self.size]
                assert cell == tuple(run.tokens[: i + 1])
        if self.recurrent:
            assert self.states.get(run.lease.state, ()) == tuple(run.tokens[: run.computed])
        for _, (first, blocks), cells in self.tables(run):
            for i in range(run.computed, run.computed + n):
                block = cells.setdefault(blocks[i // self.size - first], [None] * self.size)
                block[i % self.size] = tuple(run.tokens[: i + 1])
        run.computed += n
        if self.recurrent:
            self.states[run.lease.state] = tuple(run.tokens[: run.computed])
            for cut in run.lease.cuts:
                assert run.computed - n < cut.position <= run.computed
                self.states[cut.slot] = tuple(run.tokens[: cut.position])

    @rule(rng=CHANCE)
    def talk(self, rng: random.Random) -> None:
        """A sequence of its own, mostly to its end."""
        before = len(self.running)
        self.begin(rng)
        if len(self.running) == before:
            return
        run = self.running[-1]
        for _ in range(rng.randrange(1, 9)):
            self.step_of(run, rng)
            if run not in self.running:
                return
        if rng.random() < 0.8:
            self.end(run, valid=rng.random() < 0.9)

    @rule(rng=CHANCE)
    def begin(self, rng: random.Random) -> None:
        tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 15))]
        if self.done and rng.random() < 0.7:
            old = rng.choice(self.done[-6:])
            tokens = [*old[: len(old) - rng.choice((0, 0, rng.randrange(len(old) + 1)))], *tokens]
        found = self.cache.match(tokens)
        assert found.tokens < len(tokens)
        ended = max((_common(tokens[:-1], old) for old in self.done), default=0)
        begun = (tuple(run.tokens[: run.computed]) for run in self.running)
        best = max((_common(tokens[:-1], old) for old in begun), default=0)
        assert found.tokens <= max(ended, best)
        if not self.recurrent and not self.cache.evictions:
            assert found.tokens >= ended
        need = -(-len(tokens) // self.size)
        if need - found.resident > self.cache.spare_beside(found):
            return
        if self.recurrent and not self.cache.spare_states:
            return
        lease = self.cache.begin(found, need)
        self.copy()
        if found.tokens == 0 and self.recurrent:
            self.states[lease.state] = ()
        self.running.append(Run(tokens, lease, found.tokens))

    @precondition(lambda self: self.running)
    @rule(rng=CHANCE)
    def step(self, rng: random.Random) -> None:
        self.step_of(rng.choice(self.running), rng)

    def step_of(self, run: Run, rng: random.Random) -> None:
        run.tokens += [rng.randrange(3) for _ in range(rng.choice((0, 0, 1, 3)))]
        left = len(run.tokens) - run.computed
        n = rng.randint(0, min(STEP, left) if self.windows else left)
        if not self.cache.grow(run.lease, run.computed + n):
            return
        self.copy()
        if self.recurrent and n:
            places = {run.computed + rng.randint(1, n) for _ in range(rng.randrange(4))}
            cuts = self.cache.reserve(run.lease, run.computed, sorted(places))
            assert {cut.position for cut in cuts} <= places
            self.copy()
            self.cache.check([run.lease for run in self.running])
            if rng.random() < 0.1:  # the step fails
                self.end(run, valid=False)
                return
        self.compute(run, n)
        self.cache.keep(run.lease, run.tokens, run.computed)
        self.cache.save_cuts(run.lease, run.tokens)
        if rng.random() < 0.3:
            self.cache.save(run.lease, run.tokens, run.computed)
        self.cache.trim(run.lease, run.computed)
        for window, table in zip(self.windows, run.lease.windows, strict=True):
            assert len(table.blocks) <= (window - 2) // self.size + 2
        self.copy()
        self.compute(run, 0)

    @precondition(lambda self: self.running)
    @rule(rng=CHANCE, valid=st.booleans())
    def finish(self, rng: random.Random, valid: bool) -> None:
        self.end(rng.choice(self.running), valid=valid)

    def end(self, run: Run, *, valid: bool) -> None:
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
        n = 0
        if self.recurrent:
            n = max(1, self.slots - (change > 0), cache.states.used - cache.checkpoints.on_device)
        moves = cache.resize(count, n, [run.lease for run in self.running])
        self.copy()
        for cells, of in zip(
            (self.cells, *self.seen.values()), (moves.blocks, *moves.windows), strict=True
        ):
            for old, new in of.items():
                cells[new] = list(cells.get(old, [None] * self.size))
        for old, new in moves.states.items():
            self.states[new] = self.states.get(old, ())

    @rule(blocks=st.integers(0, 12), states=st.integers(0, 3))
    def resize_host(self, blocks: int, states: int) -> None:
        self.cache.store.resize_host(blocks, states if self.recurrent else 0)
        self.copy()
        for cells in (self.cells, self.states):
            for number in [n for n in cells if n < 0]:
                if ~number >= (blocks if cells is self.cells else states):
                    del cells[number]
        for kind in self.cache.windows.kinds:
            cells = self.seen[kind.window.tokens]
            for number in [n for n in cells if n < 0 and ~n >= kind.host.count]:
                del cells[number]

    @rule(n=st.integers(0, 8))
    def lend(self, n: int) -> None:
        """Somebody else writes into what is spare."""
        n = min(n, self.cache.spare_blocks)
        taken = self.cache.take(n)
        self.copy()
        for block in taken:
            self.cells[block] = [None] * self.size
        self.cache.blocks.release(taken)

    @invariant()
    def sound(self) -> None:
        self.cache.check([run.lease for run in self.running])
        for run in self.running:
            for i, (first, blocks) in enumerate(run.lease.windows):
                # What it writes next, nobody reads beyond the tokens before.
                for block in blocks[run.computed // self.size - first :]:
                    others = [r.lease.windows[i].blocks for r in self.running if r is not run]
                    assert all(block not in table for table in others)
                    kept = [c for c in self.cache.checkpoints if block in c.windows[i].blocks]
                    assert all(c.position <= run.computed for c in kept)

    def teardown(self) -> None:
        for run in self.running:
            self.cache.release(run.lease, run.tokens, run.computed, state_valid=True)
        self.cache.check([])
        self.cache.store.resize_host(0, 0)
        self.cache.make_free(self.cache.blocks.count)
        self.cache.check([])
        assert self.cache.tree.count == self.cache.blocks.used == 0
        assert self.cache.states.used == len(self.cache.checkpoints) == 0
        assert all(kind.pool.used == kind.host.used == 0 for kind in self.cache.windows.kinds)


TestCacheAgainstLists = CacheAgainstLists.TestCase
TestCacheAgainstLists.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def _common(a: list[int], b: tuple[int, ...]) -> int:
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


def compute_all(cache: PrefixCache, tokens: list[int], opening: int = 0) -> int:
    """One request from beginning to end; how much of it was cached."""
    found = cache.match(tokens, opening)
    lease = cache.begin(found, -(-len(tokens) // cache.tree.block_tokens))
    cache.keep(lease, tokens, len(tokens))
    cache.release(lease, tokens, len(tokens), state_valid=True)
    cache.copies()
    return found.tokens


@settings(max_examples=60, deadline=None)
@given(
    main=st.integers(80, 220),
    sides=st.lists(
        st.lists(st.tuples(st.integers(1, 31), st.booleans()), max_size=14), min_size=1, max_size=6
    ),
    host=st.sampled_from((0, 40)),
    shared=st.sampled_from((0, 40)),
)
def test_side_requests_do_not_push_out_a_conversation(
    main: int, sides: list[list[tuple[int, bool]]], host: int, shared: int
) -> None:
    """Each fits in a tenth of 80 blocks, alone or behind the system prompt that all share."""
    cache = PrefixCache(BlockPool(80, first=1), BlockPool(0), 4, on=True, host_blocks=host)
    talk, number = list(range(main)), 1000
    opening = max(shared, 60)
    assert compute_all(cache, talk, opening) == 0
    for turn in sides:
        for length, behind in turn:
            number += 100
            beginning = talk[:shared] if behind else []
            side = [*beginning, *range(number, number + length)]
            compute_all(cache, side, len(beginning) + 1)
        length = len(talk)
        talk += range(10_000 + length, 10_004 + length)
        assert compute_all(cache, talk, opening) == length


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


def test_what_leaves_the_device_comes_back() -> None:
    states = BlockPool(2)
    cache = PrefixCache(BlockPool(8, first=1), states, 4, on=True, host_blocks=40, host_states=8)
    talks = [[100 * i + j for j in range(30)] for i in range(4)]
    for talk in talks:
        assert compute_all(cache, talk) == 0
    for talk in talks:
        assert compute_all(cache, [*talk, 1]) == 30
    assert cache.store.spills > 20
    assert cache.store.returns > 20
    assert cache.evictions == 0
    cache.check([])
