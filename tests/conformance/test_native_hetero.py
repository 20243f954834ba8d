"""Parts, the link and the host service: the same bits wherever an expert is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import expert_caches
import pytest
import torch
from native_bank import DTYPES, Bank, routing
from random_tensors import Random
from torch import Tensor

from headrace import _native
from headrace.ops.plan.native import NativePlan
from headrace.ops.table import CacheLayer

NAN = float("nan")


@pytest.fixture(scope="module", params=_native.isas())
def pool(request: pytest.FixtureRequest) -> Iterator[_native.Pool]:
    made = _native.Pool(threads=2, isa=request.param, rescue=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def quick() -> Iterator[_native.Pool]:
    made = _native.Pool(threads=1)
    yield made
    made.close()


def parts_of(
    pool: _native.Pool,
    layer: _native.ExpertLayer,
    x: Tensor,
    ids: Tensor,
    out: Tensor,
    *,
    exact: bool,
) -> None:
    pool.experts_parts(
        x.data_ptr(), x.shape[0], ids.data_ptr(), ids.shape[1], layer, out.data_ptr(), exact
    )


def combined(pool: _native.Pool, parts: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    tokens, top_k, hidden = parts.shape
    y = torch.full((tokens, hidden), NAN)
    addresses = (t.data_ptr() for t in (ids, weights, y))
    pool.combine(parts.data_ptr(), tokens, top_k, hidden, *addresses)
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("exact", [True, False])
def test_combined_parts_are_the_bits_of_experts(
    pool: _native.Pool, dtype: torch.dtype, *, exact: bool
) -> None:
    torch.manual_seed(3)
    alone = _native.Pool(threads=1, isa=pool.isa)
    for kind, hidden, width in ((0, 130, 77), (1, 33, 100), (2, 1, 7)):
        bank = Bank(6, hidden, width, dtype, kind=kind, biases=kind != 2, limit=0.7)
        for tokens in (1, 3, 17, 70):
            x = torch.randn(tokens, hidden)
            ids, weights = routing(tokens, 6, 4)
            ids[ids == 5] = -1
            expected = bank.native(pool, x, ids, weights, exact=exact)
            parts = torch.full((tokens, 4, hidden), NAN)
            parts_of(pool, bank.layer, x, ids, parts, exact=exact)
            assert parts.isnan().any(2).equal(ids < 0)
            assert combined(pool, parts, ids, weights).equal(expected)
            # In two calls, on two pools, each with company of its own.
            apart = torch.full_like(parts, NAN)
            here = torch.rand(tokens, 4) < 0.4
            for who, mask in ((pool, here), (alone, ~here)):
                parts_of(who, bank.layer, x, ids.where(mask, -1), apart, exact=exact)
            assert apart.nan_to_num(9.0).equal(parts.nan_to_num(9.0))
    alone.close()


def test_the_sum_runs_in_ascending_id(pool: _native.Pool) -> None:
    parts = torch.tensor([[1e8], [1.0], [-1e8], [5.0]])[None].expand(1, 4, 1).contiguous()
    weights = torch.ones(1, 4)
    first_large = torch.tensor([[0, 9, 4, -1]], dtype=torch.int32)  # (1e8 - 1e8) + 1
    assert combined(pool, parts, first_large, weights).item() == 1.0
    small_between = torch.tensor([[0, 4, 9, -7]], dtype=torch.int32)  # (1e8 + 1) - 1e8
    assert combined(pool, parts, small_between, weights).item() == 0.0
    same = torch.tensor([[3, 3, 3, -1]], dtype=torch.int32)  # the same expert again: as they stand
    assert combined(pool, parts, same, weights).item() == 0.0


class Rows:
    """Rows of random bytes in spans of odd sizes, and what a slot of one must hold."""

    def __init__(self, experts: int, sizes: tuple[int, ...]) -> None:
        self.sizes, self.offsets, at = sizes, [], 5
        for size in sizes:
            self.offsets.append(at)
            at += size + 3
        self.slot_nbytes = at + 11
        self.spans = [
            [torch.randint(0, 255, (n,), dtype=torch.uint8) for n in sizes] for _ in range(experts)
        ]
        self.native = _native.RowSpans(
            [[s.data_ptr() for s in row] for row in self.spans], list(sizes), self.offsets
        )

    def put(self, expert: int, slot: Tensor) -> None:
        for span, at in zip(self.spans[expert], self.offsets, strict=True):
            slot[at : at + span.shape[0]] = span

    def copy(
        self, link: _native.Link, pool: _native.Pool, picks: Tensor, base: Tensor, *, poison: bool
    ) -> None:
        """picks: experts, slots, and the count three times, as rows of one tensor."""
        experts, slots, count = (row.data_ptr() for row in picks)
        link.copy_rows(
            pool, self.native, experts, slots, count, base.data_ptr(), self.slot_nbytes, poison
        )


def picks(experts: list[int], slots: list[int], count: int) -> Tensor:
    return torch.tensor([experts, slots, [count] * len(slots)], dtype=torch.int32)


@pytest.mark.parametrize("poison", [False, True])
def test_rows_go_to_their_slots(quick: _native.Pool, *, poison: bool) -> None:
    rows = Rows(4, (1, 300_001, 64, 7))
    assert (rows.native.experts, rows.native.row_nbytes) == (4, 300_073)
    assert rows.native.slot_nbytes == rows.slot_nbytes - 14
    link = _native.Link()
    arena = torch.full((5, rows.slot_nbytes), 7, dtype=torch.uint8)
    expected = arena.clone()
    for experts, slots, count in (([3, 0, 2], [1, 4, 9], 2), ([1], [2], 0), ([1], [1], 1)):
        rows.copy(link, quick, picks(experts, slots, count), arena, poison=poison)
        for e, slot in list(zip(experts, slots, strict=True))[:count]:
            if poison:
                expected[slot] = 255
            rows.put(e, expected[slot])
    link.wait(quick)
    assert arena.equal(expected)
    (two, first), none, (one, second) = link.observations()
    assert (two, none, one) == (2, (0, 0), 1)
    assert min(first, second) > 0
    assert link.observations() == []
    link.close()


def test_poison_is_there_before_the_row(quick: _native.Pool) -> None:
    rows, link = Rows(1, (1 << 20,)), _native.Link(1.0)  # a byte a second: nothing arrives
    arena = torch.zeros(1, rows.slot_nbytes, dtype=torch.uint8)
    blocked = torch.zeros(2, dtype=torch.uint8)
    link.copy(quick, blocked.data_ptr(), blocked.data_ptr() + 1, 1)
    rows.copy(link, quick, picks([0], [0], 1), arena, poison=True)
    assert (arena == 255).all()
    link.close()


def test_copies_are_made_in_order_and_marks_name_a_part_of_them(quick: _native.Pool) -> None:
    link = _native.Link()
    chain = torch.randint(0, 255, (9, 100_003), dtype=torch.uint8)
    for a, b in pairwise(chain):
        link.copy(quick, b.data_ptr(), a.data_ptr(), a.shape[0])
    first = link.mark()
    link.wait_for(first)
    assert (chain == chain[0]).all()
    # What comes after a mark is not waited for: at this rate that would take for ever.
    link.rate = 1.0
    far = torch.zeros(1 << 20, dtype=torch.uint8)
    near = torch.ones_like(far)
    link.copy(quick, far.data_ptr(), near.data_ptr(), far.shape[0])
    link.wait_for(first)
    assert not far.all()
    # A new rate holds at once, also for what is under way.
    link.rate = 0.0
    link.wait(quick)
    assert far.all()
    link.close()


def test_a_link_is_no_faster_than_its_rate(quick: _native.Pool) -> None:
    rows, link = Rows(3, (400_000, 100_000)), _native.Link(1e8)
    arena = torch.zeros(3, rows.slot_nbytes, dtype=torch.uint8)
    for count in (1, 3):
        rows.copy(link, quick, picks([2, 1, 0], [0, 1, 2], count), arena, poison=False)
    link.wait(quick)
    for moved, nanoseconds in link.observations():
        assert nanoseconds >= moved * rows.native.row_nbytes * 10
    link.close()


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_what_is_closed_finishes_ends_its_thread_and_says_so(quick: _native.Pool) -> None:
    before = threads()
    link, host = _native.Link(1e6), _native.Pool(threads=1)
    service = _native.HostService(host)
    far, near = torch.zeros(1 << 20), torch.ones(1 << 20)
    link.copy(quick, far.data_ptr(), near.data_ptr(), 4 << 20)
    for one in (link, link, service, service):
        one.close()
    assert far.all()
    assert threads() == before
    x, bank = torch.randn(1, 16), Bank(2, 16, 8, torch.float32)
    ids = torch.zeros(1, 1, dtype=torch.int32)
    link.wait(quick)
    service.wait(quick)
    with pytest.raises(RuntimeError, match="closed"):
        link.copy(quick, x.data_ptr(), x.data_ptr(), 4)
    with pytest.raises(RuntimeError, match="closed"):
        service.alert(quick)
    with pytest.raises(RuntimeError, match="closed"):
        service.ring(
            quick, x.data_ptr(), 1, ids.data_ptr(), 1, bank.layer, x.data_ptr(), exact=True
        )
    host.close()


def test_the_link_refuses(quick: _native.Pool) -> None:
    a = torch.zeros(64, dtype=torch.uint8)
    for sources, nbytes, offsets in (
        ([], [4], [0]),
        ([[a.data_ptr()]], [], []),
        ([[a.data_ptr()]], [4, 4], [0, 4]),
        ([[a.data_ptr()]], [4], [0, 4]),
        ([[0]], [4], [0]),
    ):
        with pytest.raises(ValueError, match="RowSpans"):
            _native.RowSpans(sources, nbytes, offsets)
    here = a.data_ptr()
    for forms, form_of in ((2, ()), (2, (0,)), (2, (0, 2)), (3, (0, 1)), (1, (0, 1))):
        with pytest.raises(ValueError, match="RowSpans"):
            _native.RowSpans([[here], [here]], [4, 8], [0, 0], forms, form_of)
    assert _native.RowSpans([[here], [here]], [4, 8], [0, 0], 2, (0, 1)).row_nbytes == 6
    for rate in (-1.0, NAN, float("inf")):
        with pytest.raises(ValueError, match="rate"):
            _native.Link(rate)
    rows, link = Rows(2, (8,)), _native.Link()
    arena = torch.zeros(1, rows.slot_nbytes, dtype=torch.uint8)
    for experts, slots, text in (([2], [0], "expert 2 in a layer of 2"), ([0], [-1], "slot -1")):
        with pytest.raises(ValueError, match=text):
            rows.copy(link, quick, picks(experts, slots, 1), arena, poison=True)
    rows.slot_nbytes = rows.native.slot_nbytes - 1
    with pytest.raises(ValueError, match="smaller than a row"):
        rows.copy(link, quick, picks([0], [0], 1), arena, poison=True)
    with pytest.raises(ValueError, match="mark"):
        link.wait_for(link.mark() + 1)
    assert not arena.any()
    link.close()


def test_the_service_gives_the_bits_of_a_direct_call(pool: _native.Pool) -> None:
    torch.manual_seed(8)
    bank = Bank(7, 96, 40, torch.bfloat16, biases=True)
    host = _native.Pool(threads=2, isa=pool.isa, rescue=True)
    service = _native.HostService(host, cpu=0)
    counts = []
    for turn in range(40):
        tokens = (1, 4, 1, 30)[turn % 4]
        x, (ids, _) = torch.randn(tokens, 96), routing(tokens, 7, 3)
        ids[torch.rand(tokens, 3) < 0.4] = -1
        if turn % 5 == 0:
            ids[:] = -1
        counts.append(len(set(ids.flatten().tolist()) - {-1}))
        ours, theirs = (torch.full((tokens, 3, 96), NAN) for _ in range(2))
        if turn % 3:
            service.alert(pool)
        task = (ids.data_ptr(), 3, bank.layer, theirs.data_ptr())
        service.ring(pool, x.data_ptr(), tokens, *task, turn % 2 == 0)
        parts_of(pool, bank.layer, x, ids, ours, exact=turn % 2 == 0)
        service.wait(pool)
        assert theirs.nan_to_num(9.0).equal(ours.nan_to_num(9.0))
    seen = service.observations()
    assert [experts for experts, _ in seen] == counts
    assert all((ns > 0) == (experts > 0) for experts, ns in seen)
    service.close()
    host.close()


def test_what_a_task_raised_is_raised_by_the_wait(quick: _native.Pool) -> None:
    bank, host = Bank(2, 16, 8, torch.float32), _native.Pool(threads=1)
    service = _native.HostService(host)
    x, parts = torch.randn(1, 16), torch.empty(1, 1, 16)
    wrong, right = (torch.tensor([[e]], dtype=torch.int32) for e in (2, 1))
    for ids in (wrong, right):
        task = (x.data_ptr(), 1, ids.data_ptr(), 1, bank.layer, parts.data_ptr(), True)
        service.ring(quick, *task)
        if ids is wrong:
            with pytest.raises(ValueError, match="id 2 in a layer of 2"):
                service.wait(quick)
        else:
            service.wait(quick)
    service.close()
    host.close()


class Step:
    """A layer in hybrid placement: `slots` rows lie in an arena, the others on the host."""

    def __init__(self, bank: Bank, slots: int, tokens: int, top_k: int) -> None:
        hidden, width, experts = bank.down.shape[1], bank.down.shape[2], bank.down.shape[0]
        size = bank.down.element_size()
        matrix = hidden * width * size
        offsets = [0, matrix, 2 * matrix]
        rows = zip(bank.gate, bank.up, bank.down, strict=True)
        self.spans = _native.RowSpans(
            [[t.data_ptr() for t in row] for row in rows], [matrix] * 3, offsets
        )
        self.slot_nbytes = 3 * matrix + 256
        self.arena = torch.full((slots, self.slot_nbytes), 255, dtype=torch.uint8)
        gate, up, down = ([self.arena[s].data_ptr() + at for s in range(slots)] for at in offsets)
        self.layer = _native.ExpertLayer(
            formats=(1, 1, 1), hidden=hidden, width=width, activation=0,
            gate=gate, up=up, down=down,
            gate_stride_bytes=hidden * size, up_stride_bytes=hidden * size,
            down_stride_bytes=width * size,
        )  # fmt: skip
        self.bank = bank
        self.x, self.weights = torch.empty(tokens, hidden), torch.empty(tokens, top_k)
        self.ids = torch.zeros(tokens, top_k, dtype=torch.int32)
        self.parts = torch.full((tokens, top_k, hidden), NAN)
        self.y = torch.full((tokens, hidden), NAN)
        self.quota = torch.tensor([0, 1, 1, 2, 2], dtype=torch.int32)
        self.cache = expert_caches.random(Random(1), experts, slots, 0, lru=False)
        self.planned = expert_caches.planned(self.ids, experts)

    def run(self, pool: _native.Pool, link: _native.Link, host: _native.HostService) -> None:
        tokens, top_k, hidden = self.parts.shape
        at: Callable[[Tensor], int] = Tensor.data_ptr
        out, layer = self.planned, CacheLayer(0, self.cache.value_R.shape[0])
        host.alert(pool)
        NativePlan(pool)(self.ids, layer, self.cache, self.quota, out)
        task = (at(self.x), tokens)
        host.ring(pool, *task, at(out.host_ids_TX), top_k, self.bank.layer, at(self.parts), True)
        link.copy_rows(
            pool, self.spans, at(out.fill_experts_E), at(out.fill_slots_E), at(out.counts_4[2:]),
            at(self.arena), self.slot_nbytes, True,
        )  # fmt: skip
        link.wait(pool)
        pool.experts_parts(*task, at(out.slot_ids_TX), top_k, self.layer, at(self.parts), True)
        host.wait(pool)
        pool.combine(
            at(self.parts), tokens, top_k, hidden, at(self.ids), at(self.weights), at(self.y)
        )


@pytest.mark.parametrize(("slots", "tokens"), [(1, 1), (5, 2), (12, 3)])
def test_a_replayed_step_follows_its_inputs(pool: _native.Pool, slots: int, tokens: int) -> None:
    torch.manual_seed(slots)
    bank = Bank(12, 64, 24, torch.bfloat16)
    step = Step(bank, slots, tokens, 4)
    own = _native.Pool(threads=2, isa=pool.isa, rescue=True)
    link, host, tape = _native.Link(), _native.HostService(own), _native.Tape()
    steps = 30
    for turn in range(steps):
        ids, step.weights[:] = routing(tokens, 12, 4)
        step.ids[:] = torch.where(torch.rand(tokens, 4) < 0.1, -1, ids)
        step.x[:] = torch.randn(tokens, 64)
        step.parts.fill_(NAN)
        step.y.fill_(NAN)
        if turn == 0:
            pool.record(tape)
            step.run(pool, link, host)
            pool.stop()
            assert len(tape) == 8
        else:
            tape.replay(pool)
        assert step.y.equal(bank.native(pool, step.x, step.ids, step.weights))
    assert len(link.observations()) == len(host.observations()) == steps
    for one in (link, host, own):
        one.close()


def test_a_paced_kernel_takes_no_less_than_it_should(quick: _native.Pool) -> None:
    import time

    tape = _native.Tape()
    quick.record(tape)
    quick.pace(0)
    quick.pace(300_000)
    quick.stop()
    start = time.monotonic_ns()
    tape.replay(quick)
    assert time.monotonic_ns() - start >= 300_000
