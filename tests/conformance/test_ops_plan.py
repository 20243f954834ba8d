"""`plan` and `observe` of the native pool are the reference, bit for bit, in any state of a
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import expert_caches
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_tensors import Random
from torch import Tensor

from headrace.device.cpu import CpuDevice
from headrace.ops.choose import ops_for
from headrace.ops.plan import reference
from headrace.ops.table import Cache, CacheLayer, Ops
from headrace.planning.policies import fade_of

EDGES = (0, 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 2)


@pytest.fixture(scope="module")
def ops() -> Iterator[Ops]:
    with CpuDevice(1) as device:
        yield ops_for(device)


@st.composite
def caches(draw: Callable[..., int]) -> tuple[Cache, CacheLayer]:
    """Full, partly filled and empty ones, smaller or larger than a layer; values may collide."""
    experts, before, after = (draw(st.integers(low, 33)) for low in (1, 0, 0))
    rows, slots = before + experts + after, draw(st.integers(1, 50))
    resident = draw(st.one_of(st.just(min(rows, slots)), st.integers(0, min(rows, slots))))
    r = Random(draw(st.integers(0, 1000)))
    cache = expert_caches.random(r, rows, slots, resident, lru=draw(st.booleans()))
    if draw(st.booleans()):
        cache.value_R[:] = torch.tensor(EDGES)[r.ids(len(EDGES), rows)]
        cache.clock_1[:] = draw(st.sampled_from(EDGES))
    return cache, CacheLayer(before, experts)


@st.composite
def ids_for(draw: Callable[..., int], experts: int) -> Tensor:
    """Any, also the same expert twice for one token, and those that are skipped."""
    tokens, top_k = draw(st.integers(1, 9)), draw(st.integers(1, 7))
    low = draw(st.sampled_from((0, -1, -3)))
    drawn = Random(draw(st.integers(0, 1000))).ids(experts, tokens, top_k, low=low)
    return drawn.to(torch.int32)


@st.composite
def quotas(draw: Callable[..., int]) -> Tensor:
    """0 <= q[m] <= m, in tables that may end before the misses do."""
    length = draw(st.integers(2, 36))
    return torch.tensor([draw(st.integers(0, m)) for m in range(length)], dtype=torch.int32)


def run(
    plan: Callable[..., None], ids: Tensor, layer: CacheLayer, cache: Cache, quota: Tensor, n: int
) -> tuple[Tensor, ...]:
    own, out = expert_caches.clone(cache), expert_caches.planned(ids, layer.experts)
    plan(ids, layer, own, quota, out, staging=n)
    return *expert_caches.tensors(own), *expert_caches.results(out)


@given(caches(), quotas(), st.integers(0, 5), st.data())
def test_plan_equals_the_reference(
    ops: Ops, state: tuple[Cache, CacheLayer], quota: Tensor, staging: int, data: st.DataObject
) -> None:
    cache, layer = state
    ids = data.draw(ids_for(layer.experts))
    for n in (0, staging):
        found = run(ops.plan, ids, layer, cache, quota, n)
        expected = run(reference.plan, ids, layer, cache, quota, n)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)


@given(caches(), st.integers(1, 5000), st.data())
def test_observe_equals_the_reference(
    ops: Ops, state: tuple[Cache, CacheLayer], tokens: int, data: st.DataObject
) -> None:
    cache, layer = state
    ids, fade = data.draw(ids_for(layer.experts)), fade_of(tokens)
    ours, theirs = expert_caches.clone(cache), expert_caches.clone(cache)
    ops.observe(ids, layer, ours, fade)
    reference.observe(ids, layer, theirs, fade)
    for a, b in zip(expert_caches.tensors(ours), expert_caches.tensors(theirs), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lru", [False, True])
@pytest.mark.parametrize(("slots", "tokens"), [(1, 1), (7, 3), (64, 2), (1600, 64)])
def test_many_steps_keep_slots_and_rows_one_to_one(
    ops: Ops, slots: int, tokens: int, *, lru: bool
) -> None:
    r, layers, experts = Random(slots), 16 if slots > 64 else 4, 128 if slots > 64 else 24
    cache = expert_caches.random(r, layers * experts, slots, 0, lru=lru)
    other = expert_caches.clone(cache)
    quota = torch.arange(experts + 1, dtype=torch.int32)
    for step in range(12):
        layer = CacheLayer(step % layers * experts, experts)
        ids = (r.normal(tokens, 3).abs() * experts / 3).clamp(max=experts - 1).to(torch.int32)
        a, b = (expert_caches.planned(ids, experts) for _ in range(2))
        ops.plan(ids, layer, cache, quota, a)
        reference.plan(ids, layer, other, quota, b)
        for x, y in zip(expert_caches.results(a), expert_caches.results(b), strict=True):
            assert torch.equal(x, y)
        held = {slot: row for slot, row in enumerate(cache.row_of_S.tolist()) if row >= 0}
        there = {slot: row for row, slot in enumerate(cache.slot_of_R.tolist()) if slot >= 0}
        assert held == there
        read = a.slot_ids_TX[a.slot_ids_TX >= 0].long()
        assert torch.equal(cache.row_of_S[read], ids[a.slot_ids_TX >= 0] + layer.base)
    for x, y in zip(expert_caches.tensors(cache), expert_caches.tensors(other), strict=True):
        assert torch.equal(x, y)


def test_by_hand(ops: Ops) -> None:
    # Rows 0-3 and 8-9 are other layers', 4-7 are experts 0-3. Slot 2 is free.
    cache = Cache(
        torch.tensor([0, -1, 3, -1, 1, -1, -1, -1, 4, -1], dtype=torch.int32),
        torch.tensor([0, 4, -1, 2, 8], dtype=torch.int32),
        torch.zeros(2, 10, dtype=torch.int64),
        torch.tensor([50, 0, 9, 0, 1, 30, 20, 30, 9, 0]),
        torch.tensor([100]),
        lru=True,
    )
    ids = torch.tensor([[3, 1, 0], [2, -1, 3]], dtype=torch.int32)
    quota = torch.tensor([0, 1, 1, 2], dtype=torch.int32)
    out = expert_caches.planned(ids, 4)
    ops.plan(ids, CacheLayer(4, 4), cache, quota, out)
    # Misses 1, 2, 3: two are filled, 1 before 3 (equal values), into the free slot and that of
    # row 2 (least value; row 8 has the same and a greater number; row 4 is active).
    assert out.counts_4.tolist() == [4, 1, 2, 1]
    assert out.fill_experts_E.tolist() == [1, 3, -9, -9]
    assert out.fill_slots_E.tolist() == [2, 3, -9, -9]
    assert out.slot_ids_TX.tolist() == [[3, 2, 1], [-1, -1, 3]]
    assert out.host_ids_TX.tolist() == [[-1, -1, -1], [2, -1, -1]]
    assert cache.row_of_S.tolist() == [0, 4, 5, 7, 8]
    assert cache.slot_of_R.tolist() == [0, -1, -1, -1, 1, 2, -1, 3, 4, -1]
    assert cache.value_R.tolist() == [50, 0, 9, 0, 101, 101, 101, 101, 9, 0]


def test_refuses(ops: Ops) -> None:
    r = Random(1)
    cache, layer = expert_caches.random(r, 9, 4, 2, lru=False), CacheLayer(2, 5)
    good = torch.tensor([[1]], dtype=torch.int32)
    quota = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match="expert 5 in a layer of 5"):
        run(ops.plan, good + 4, layer, cache, quota, 0)
    with pytest.raises(ValueError, match="quota"):
        run(ops.plan, good, layer, cache, quota[:1], 0)
    with pytest.raises(ValueError, match="expert 5 in a layer of 5"):
        ops.observe(good + 4, layer, cache, fade_of(1))
