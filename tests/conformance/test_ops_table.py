"""One body over the live table: every op, in every fast implementation of this machine, against its
reference.

Fresh random inputs, odd shapes, uninitialised memory that is NaN; the error is a normalised mean
square.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import expert_caches
import pytest
import torch
from op_cases import FORMATS, SMALL, Case, Results, latent_attention, latents_stored
from op_states import CARRIED
from random_tensors import Random
from torch import Tensor

from headrace import _native
from headrace.device.cpu import CpuDevice
from headrace.ops.choose import ops_for
from headrace.ops.reference import reference_ops
from headrace.ops.table import (
    Activation,
    Cache,
    CacheLayer,
    ExpertRows,
    Gating,
    Linear,
    Ops,
    Router,
    Routing,
    Score,
)
from headrace.planning.policies import Fade


def linear(r: Random) -> Iterator[Case]:
    for dtype in FORMATS:
        for tokens, columns, rows in ((1, 63, (17,)), (5, 100, (7, 1, 9)), (67, 33, (130,))):
            parts = tuple(r.normal(n, columns, dtype=dtype) for n in rows)
            bias = r.normal(sum(rows)) if tokens == 5 else None
            x, w = r.normal(tokens, columns), Linear(parts, bias)
            yield lambda ops, x=x, w=w: (ops.linear(x, w),)
    wide = r.normal(6, 80)
    x, w = r.normal(4, 70)[:, 3:43], Linear((wide[:, :40], wide[:3, :40]))
    yield lambda ops: (ops.linear(x, w),)


def add(r: Random) -> Iterator[Case]:
    for tokens, width in ((1, 7), (3, 100), (40, 2048)):
        x, y = r.normal(tokens, width), r.normal(tokens, width)

        def case(ops: Ops, x: Tensor = x, y: Tensor = y) -> Results:
            total = x.clone()
            ops.add(total, y)
            return (total,)

        yield case


def rms_norm(r: Random) -> Iterator[Case]:
    for shape in ((1, 63), (7, 100), (3, 5, 24)):
        x, weight = r.normal(*shape), r.normal(shape[-1])
        yield lambda ops, x=x, w=weight: (ops.rms_norm(x, w, 1e-3),)
        yield lambda ops, x=x, w=weight: (ops.rms_norm(x, w, 1e-6, plus_one=True),)
        yield lambda ops, x=x: (ops.rms_norm(x, None, 0.1),)
    x, weight = r.strided(4, 3, 10), r.normal(10)
    yield lambda ops: (ops.rms_norm(x, weight, 1e-3),)
    yield lambda ops: (ops.rms_norm(x.flatten(1)[:, 2:], None, 1e-3),)


def gated_rms_norm(r: Random) -> Iterator[Case]:
    for shape in ((1, 1, 12), (5, 3, 33)):
        x, weight = r.normal(*shape), r.normal(shape[-1])
        for gate in (r.normal(*shape), r.strided(*shape)):
            for gating in Gating:
                for w in (weight, r.normal(*shape[1:])):
                    yield lambda ops, a=(x, gate, w), g=gating: (
                        ops.gated_rms_norm(*a, 1e-3, gating=g),
                    )


def rope(r: Random) -> Iterator[Case]:
    for tokens, heads, width, pairs in ((1, 1, 8, 4), (5, 3, 22, 11), (9, 2, 24, 5)):
        x, angle = r.strided(tokens, heads, width), r.normal(tokens, pairs)
        for interleaved in (False, True):

            def case(
                ops: Ops, x: Tensor = x, a: Tensor = angle, *, pairwise: bool = interleaved
            ) -> Results:
                rows = x.as_strided((x.shape[0], x.stride(0)), (x.stride(0), 1), 0).clone()
                own = rows.as_strided(x.shape, x.stride(), 5)
                ops.rope(own, a.cos(), a.sin(), interleaved=pairwise)
                return (rows,)

            yield case


def store_kv(r: Random) -> Iterator[Case]:
    for dtype in (torch.float32, torch.bfloat16):
        for tokens, heads, width in ((1, 1, 7), (6, 3, 10)):
            x, slots = r.strided(tokens, heads, width), r.order(40)[:tokens]
            before = r.normal(40, heads, width, dtype=dtype)

            def case(
                ops: Ops, x: Tensor = x, before: Tensor = before, slots: Tensor = slots
            ) -> Results:
                pool = before.clone()
                ops.store_kv(x, pool, slots)
                return (pool,)

            yield case
    yield from latents_stored(r)


def attention(r: Random) -> Iterator[Case]:
    shapes = (
        ([1], [0], 4, (1, 1, 8, 8), 0),
        ([1, 1, 1], [5, 0, 70], 16, (6, 2, 10, 10), 0),
        ([13, 1, 40], [0, 33, 7], 3, (6, 3, 12, 7), 0),
        ([13, 1, 40], [0, 33, 7], 5, (4, 4, 33, 20), 6),
        ([13, 1, 40], [0, 33, 7], 5, (4, 2, 16, 16), -9),  # below 0: chunks
    )
    for dtype in (torch.float32, torch.bfloat16):
        for lengths, contexts, block, (heads, groups, width, value), window in shapes:
            spans = r.spans(lengths, contexts, block)
            slots = spans.blocks_SB.numel() * block
            q = r.strided(sum(lengths), heads, width)
            k, v = (
                r.normal(slots, groups, width, dtype=dtype),
                r.normal(slots, groups, value, dtype=dtype),
            )
            for sinks in (None, r.normal(heads)):
                yield lambda ops, a=(q, k, v, spans), w=window, s=sinks: (
                    ops.attention(*a, scale=0.3, window=abs(w), chunked=w < 0, sinks_H=s),
                )
    yield from latent_attention(r)


def route(r: Random) -> Iterator[Case]:
    for tokens, experts, top_k in ((1, 7, 1), (9, 24, 3), (5, 128, 8)):
        logits, bias = r.normal(tokens, experts), r.normal(experts)
        for score in Score:
            plain = Router(top_k, score, renormalize=False)
            scaled = Router(top_k, score, renormalize=True, renorm_eps=1e-3, scale=2.5)
            for router, b, by in ((plain, None, None), (scaled, bias, r.normal(experts))):
                yield lambda ops, a=(logits, b, router, by): _routed(ops.route(*a))
    grouped = Router(3, Score.SIGMOID, groups=6, keep_groups=2, renorm_eps=1e-20, scale=1.5)
    logits, bias = r.normal(11, 24), r.normal(24)
    yield lambda ops: _routed(ops.route(logits, bias, grouped))
    single = dataclasses.replace(grouped, score=Score.SOFTMAX, group_best=1)
    yield lambda ops: _routed(ops.route(logits, None, single))
    ties = torch.zeros(2, 24)
    yield lambda ops: _routed(ops.route(ties, None, Router(5)))


def _routed(routing: Routing) -> Results:
    return routing.ids_TX.float(), routing.weights_TX


def experts(r: Random) -> Iterator[Case]:
    for x, routing, rows in _experts_of_all_kinds(r):
        yield lambda ops, a=(x, routing, rows): (ops.experts(*a),)


def experts_parts(r: Random) -> Iterator[Case]:
    for x, routing, rows in _experts_of_all_kinds(r):

        def case(
            ops: Ops, x: Tensor = x, ids: Tensor = routing.ids_TX, rows: ExpertRows = rows
        ) -> Results:
            parts = torch.full((*ids.shape, x.shape[1]), 7.0)
            ops.experts_parts(x, ids, rows, parts)
            return (parts,)

        yield case


def combine(r: Random) -> Iterator[Case]:
    for tokens, top_k, hidden in ((1, 1, 33), (7, 5, 70), (40, 8, 128)):
        ids = torch.stack([r.order(9)[:top_k] for _ in range(tokens)]).to(torch.int32) - 1
        parts = r.normal(tokens, top_k, hidden)
        parts[ids < 0] = float("nan")  # nobody has written there
        routing = Routing(ids, r.normal(tokens, top_k))
        yield lambda ops, a=(parts, routing): (ops.combine(*a),)


def plan(r: Random) -> Iterator[Case]:
    for tokens, slots, resident in ((1, 30, 13), (3, 30, 30), (9, 4, 4)):
        cache = expert_caches.random(r, 50, slots, resident, lru=tokens == 3)
        ids = torch.stack([r.order(24)[:5] for _ in range(tokens)]).to(torch.int32)
        ids[tokens // 2, 3] = -1
        quota = torch.tensor([0, 1, 1, 2, 3], dtype=torch.int32)
        for staging in (0, 2):

            def case(
                ops: Ops,
                cache: Cache = cache,
                ids: Tensor = ids,
                quota: Tensor = quota,
                staging: int = staging,
            ) -> Results:
                own, out = expert_caches.clone(cache), expert_caches.planned(ids, 24)
                ops.plan(ids, CacheLayer(7, 24), own, quota, out, staging=staging)
                return *expert_caches.tensors(own), *expert_caches.results(out)

            yield case


def observe(r: Random) -> Iterator[Case]:
    for tokens in (1, 37):
        cache = expert_caches.random(r, 50, 20, 9, lru=False)
        ids = r.ids(24, tokens, 3, low=-1).to(torch.int32)

        def case(ops: Ops, cache: Cache = cache, ids: Tensor = ids) -> Results:
            own = expert_caches.clone(cache)
            fade = Fade((1234567, 16000000), (3 << 30, 1 << 31))
            ops.observe(ids, CacheLayer(7, 24), own, fade)
            return expert_caches.tensors(own)

        yield case


def _experts_of_all_kinds(r: Random) -> Iterator[tuple[Tensor, Routing, ExpertRows]]:
    for dtype in FORMATS:
        for tokens, count, top_k, width, hidden in (
            (1, 1, 1, 5, 33),
            (9, 6, 3, 19, 44),
            (40, 3, 2, 64, 70),
        ):
            for activation in Activation:
                yield _experts(r, dtype, (tokens, count, top_k, width, hidden), activation)


def _experts(
    r: Random, dtype: torch.dtype, sizes: tuple[int, int, int, int, int], kind: Activation
) -> tuple[Tensor, Routing, ExpertRows]:
    tokens, count, top_k, width, hidden = sizes
    # Gate and up rows interleaved, as some files store them.
    pairs = r.normal(count, 2 * width, hidden, dtype=dtype) * hidden**-0.5
    down = r.normal(count, hidden, width, dtype=dtype) * width**-0.5
    biased = kind == Activation.CLAMPED_SIGMOID
    rows = ExpertRows(
        [p[0::2] for p in pairs],
        [p[1::2] for p in pairs] if kind.has_up else (),
        list(down),
        kind,
        [r.normal(width) for _ in range(count)] if biased else (),
        [r.normal(width) for _ in range(count)] if biased else (),
        [r.normal(hidden) for _ in range(count)] if biased else (),
        limit=0.7,
    )
    ids = torch.stack([r.order(count)[:top_k] for _ in range(tokens)]).to(torch.int32)
    if top_k > 1:
        ids[0, 0] = -1  # skipped
    return r.normal(tokens, hidden), Routing(ids, r.normal(tokens, top_k)), rows


OPS: dict[str, Callable[[Random], Iterator[Case]]] = {
    f.__name__: f
    for f in (
        *SMALL,
        linear,
        add,
        rms_norm,
        gated_rms_norm,
        rope,
        store_kv,
        attention,
        *CARRIED,
        route,
        experts,
        experts_parts,
        combine,
        plan,
        observe,
    )
}


def test_every_op_of_the_table_has_cases() -> None:
    assert set(OPS) == {field.name for field in dataclasses.fields(Ops)}


def check(found: Results, expected: Results, limit: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert not a.float().isnan().any()
        power = b.float().square().mean().clamp(min=1e-30)
        assert (a.float() - b.float()).square().mean() / power < limit


@pytest.mark.usefixtures("nan_empties")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("op", OPS)
def test_native_equals_reference(op: str, isa: str, threads: int) -> None:
    reference = reference_ops()
    with CpuDevice(threads, isa=isa, exact=True) as device:
        ops = ops_for(device)
        for case in OPS[op](Random(len(op) + threads)):
            check(case(ops), case(reference), 1e-10)


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("op", ["linear", "per_head", "experts"])
def test_rounded_activations_stay_close(op: str, isa: str) -> None:
    reference = reference_ops()
    with CpuDevice(2, isa=isa, exact=False) as device:
        ops = ops_for(device)
        for case in OPS[op](Random(9)):
            check(case(ops), case(reference), 1e-4)


def test_weights_are_found_again_by_identity_not_by_value() -> None:
    r = Random(1)
    x = r.normal(2, 9)
    with CpuDevice(1, exact=True) as device:
        ops = ops_for(device)
        for _ in range(
            50
        ):  # short-lived maps whose memory and ids would be reused if they were let go
            w = Linear((r.normal(4, 9),))
            check((ops.linear(x, w),), (reference_ops().linear(x, w),), 1e-10)
            del w
