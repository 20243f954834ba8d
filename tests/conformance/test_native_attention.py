"""Paged attention of the native pool against float64 torch, on every instruction set.

A token's bits must not depend on the batch, the chunks, or the number of threads.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from headrace import _native

ISAS = _native.isas()


@pytest.fixture(scope="module", params=ISAS)
def pool(request: pytest.FixtureRequest) -> Iterator[_native.Pool]:
    made = _native.Pool(threads=3, pin=False, isa=request.param)
    yield made
    made.close()


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    chunked: bool = False
    sinks: bool = False
    dtype: torch.dtype = torch.float32
    block_size: int = 16


class Case:
    """Sequences of (context, new tokens) in a paged pool where every unseen slot is NaN."""

    def __init__(self, shape: Shape, spans: list[tuple[int, int]], seed: int = 5) -> None:
        torch.manual_seed(seed)
        self.shape, self.spans = shape, spans
        lengths = [context + new for context, new in spans]
        self.max_blocks = max(-(-n // shape.block_size) for n in lengths)
        total = sum(-(-n // shape.block_size) for n in lengths)
        order = iter((torch.randperm(total) + 1).tolist())  # block 0 is of NaN
        slots = (total + 1) * shape.block_size
        self.k = torch.full((slots, shape.kv_heads, shape.head_dim), math.nan, dtype=shape.dtype)
        self.v = torch.full((slots, shape.kv_heads, shape.value_dim), math.nan, dtype=shape.dtype)
        self.blocks = torch.zeros(len(spans), self.max_blocks, dtype=torch.int32)
        self.keys, self.values = [], []
        for s, n in enumerate(lengths):
            # Keys that no query's window reaches are gone: their blocks may hold anything.
            gone = max(0, spans[s][0] + 1 - shape.window) if shape.window else 0
            k = torch.randn(n, shape.kv_heads, shape.head_dim).to(shape.dtype)
            v = torch.randn(n, shape.kv_heads, shape.value_dim).to(shape.dtype)
            for block in range(gone // shape.block_size, -(-n // shape.block_size)):
                self.blocks[s, block] = next(order)
            for j in range(gone, n):
                slot = int(self.blocks[s, j // shape.block_size]) * shape.block_size
                self.k[slot + j % shape.block_size] = k[j]
                self.v[slot + j % shape.block_size] = v[j]
            self.keys.append(k)
            self.values.append(v)
        tokens = sum(new for _, new in spans)
        self.q = torch.randn(tokens, shape.heads * shape.head_dim + 3)
        self.sinks = torch.randn(shape.heads) if shape.sinks else None
        self.scale = shape.head_dim**-0.5 * 1.5
        self.starts = [0, *itertools.accumulate(new for _, new in spans)]

    def run(self, pool: _native.Pool, cuts: list[tuple[int, int, int]]) -> Tensor:
        """Attention for (sequence, first, last) of its new tokens, all in one call."""
        s = self.shape
        q = torch.cat([self.q[self.starts[i] + a : self.starts[i] + b] for i, a, b in cuts])
        offsets = torch.tensor(
            [0, *itertools.accumulate(b - a for _, a, b in cuts)], dtype=torch.int32
        )
        contexts = torch.tensor([self.spans[i][0] + a for i, a, _ in cuts], dtype=torch.int32)
        blocks = self.blocks[[i for i, _, _ in cuts]].contiguous()
        out = torch.full((len(q), s.heads, s.value_dim), math.nan)
        pool.attention(
            q=q.data_ptr(), q_stride=q.stride(0), k=self.k.data_ptr(), v=self.v.data_ptr(),
            format=0 if s.dtype == torch.float32 else 1, out=out.data_ptr(), sequences=len(cuts),
            offsets=offsets.data_ptr(), contexts=contexts.data_ptr(), blocks=blocks.data_ptr(),
            max_blocks=self.max_blocks, block_size=s.block_size, heads=s.heads,
            kv_heads=s.kv_heads, head_dim=s.head_dim, value_dim=s.value_dim, scale=self.scale,
            window=s.window, chunked=s.chunked,
            sinks=0 if self.sinks is None else self.sinks.data_ptr(),
        )  # fmt: skip
        return out

    def whole(self) -> list[tuple[int, int, int]]:
        return [(i, 0, new) for i, (_, new) in enumerate(self.spans)]

    def reference(self) -> Tensor:
        return torch.cat([self.reference_of(i) for i in range(len(self.spans))])

    def reference_of(self, i: int) -> Tensor:
        s, (context, new) = self.shape, self.spans[i]
        group = s.heads // s.kv_heads
        q = self.q[self.starts[i] : self.starts[i] + new, : s.heads * s.head_dim].double()
        k = self.keys[i].double().repeat_interleave(group, 1)
        v = self.values[i].double().repeat_interleave(group, 1)
        scores = torch.einsum("thd,jhd->htj", q.reshape(new, s.heads, s.head_dim), k) * self.scale
        position = torch.arange(context, context + new)[:, None]
        key = torch.arange(context + new)[None]
        hidden = key > position
        if s.window:
            first = position - (position % s.window if s.chunked else s.window - 1)
            hidden |= key < first
        scores = scores.masked_fill(hidden, -math.inf)
        if self.sinks is not None:
            sink = self.sinks.double()[:, None, None].expand(-1, new, 1)
            scores = torch.cat([scores, sink], -1)
        weights = scores.softmax(-1)[..., : context + new]
        return torch.einsum("htj,jhd->thd", weights, v)


SHAPES = [
    Shape(3, 1, 24, 24),
    Shape(4, 2, 63, 40, window=5, block_size=7),
    Shape(8, 2, 128, 128, dtype=torch.bfloat16),
    Shape(6, 2, 40, 40, window=96, chunked=True, dtype=torch.bfloat16),
    Shape(4, 1, 512, 512, block_size=4),
    Shape(6, 6, 16, 48, window=100, sinks=True),
    Shape(2, 1, 63, 63, sinks=True, dtype=torch.bfloat16, block_size=1),
    Shape(100, 1, 8, 8, window=300, dtype=torch.bfloat16, block_size=64),
]
SPANS = [(0, 70), (300, 1), (5, 3), (700, 20), (0, 1), (255, 2), (10, 0), (1100, 1)]


def name(shape: Shape) -> str:
    return f"{shape.heads}x{shape.kv_heads}x{shape.head_dim}w{shape.window}" + "c" * shape.chunked


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_agrees_with_float64(pool: _native.Pool, shape: Shape) -> None:
    case = Case(shape, SPANS)
    out = case.run(pool, case.whole())
    assert torch.isfinite(out).all()
    assert float((out.double() - case.reference()).abs().max()) < 5e-6


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_bits_do_not_depend_on_the_call(pool: _native.Pool, shape: Shape) -> None:
    case = Case(shape, SPANS)
    whole = case.run(pool, case.whole())
    for i, (_, new) in enumerate(case.spans):
        alone = case.run(pool, [(i, 0, new)])
        assert torch.equal(alone, whole[case.starts[i] : case.starts[i] + new])
    # Chunks of the long prompts, in calls shared with other sequences' tokens.
    for step in (1, 9):
        for a in range(0, 70, step):
            b = min(a + step, 70)
            mixed = case.run(pool, [(1, 0, 1), (0, a, b), (3, a % 20, a % 20 + 1)])
            assert torch.equal(mixed[:1], whole[case.starts[1]][None])
            assert torch.equal(mixed[1:-1], whole[a:b])
            assert torch.equal(mixed[-1], whole[case.starts[3] + a % 20])


@pytest.mark.parametrize("isa", ISAS)
def test_bits_do_not_depend_on_threads(isa: str) -> None:
    for shape, spans in (
        (Shape(8, 2, 64, 64, dtype=torch.bfloat16), [(5000, 1)]),
        (Shape(4, 1, 32, 32, window=1500, sinks=True), [(2900, 40), (70, 1)]),
    ):
        case, outs = Case(shape, spans), []
        for threads in (1, 2, 5):
            pool = _native.Pool(threads=threads, pin=False, isa=isa)
            outs.append(case.run(pool, case.whole()))
            pool.close()
        assert float((outs[0].double() - case.reference()).abs().max()) < 5e-6
        assert torch.equal(outs[0], outs[1])
        assert torch.equal(outs[0], outs[2])


def test_large_scores_do_not_overflow(pool: _native.Pool) -> None:
    case = Case(Shape(2, 1, 16, 16), [(200, 30)])
    case.scale = 200.0
    out = case.run(pool, case.whole())
    assert float((out.double() - case.reference()).abs().max()) < 2e-4


def test_arguments_are_checked(pool: _native.Pool) -> None:
    case = Case(Shape(2, 1, 16, 16), [(20, 3)])
    case.max_blocks = 1
    with pytest.raises(ValueError, match="found a context of 20 that grows to 23; expected"):
        case.run(pool, case.whole())
    case.shape = Shape(3, 2, 16, 16)
    with pytest.raises(ValueError, match="found 3 heads and 2 KV heads"):
        case.run(pool, case.whole())
