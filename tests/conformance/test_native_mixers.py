"""Norms, rotary, convolution, delta rule and router of the native pool, on every instruction set.

Each is compared with plain float64 torch, and its bits must not depend on who shares the call.
"""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from headrace import _native

ISAS = _native.isas()


@pytest.fixture(scope="module", params=ISAS)
def pool(request: pytest.FixtureRequest) -> Iterator[_native.Pool]:
    made = _native.Pool(threads=3, pin=False, isa=request.param)
    assert made.isa == request.param
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)


def nans(*shape: int) -> Tensor:
    return torch.full(shape, math.nan)


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def close(found: Tensor, wanted: Tensor, bound: float = 2e-6) -> None:
    """Largest error against the largest value."""
    assert torch.isfinite(found).all()
    error = (found.double() - wanted.double()).abs().max() if found.numel() else torch.zeros(())
    assert error <= bound * max(1.0, float(wanted.abs().max()) if wanted.numel() else 1.0)


@pytest.mark.parametrize("width", [1, 24, 63, 128, 2048])
@pytest.mark.parametrize("plus_one", [False, True])
def test_rms_norm(pool: _native.Pool, width: int, plus_one: bool) -> None:
    rows = 300 if width == 2048 else 7
    x = torch.randn(rows, width + 5) * 3
    w = torch.randn(width)
    y = nans(rows, width + 2)
    pool.rms_norm(
        x.data_ptr(), rows, width, width + 5, w.data_ptr(), 1e-6, plus_one, y.data_ptr(), width + 2
    )
    x64 = x[:, :width].double()
    normal = x64 * (x64.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    close(y[:, :width], normal * (w.double() + plus_one))
    assert y[:, width:].isnan().all()
    alone = nans(1, width)
    last = x[-1].contiguous()
    pool.rms_norm(
        last.data_ptr(), 1, width, width, w.data_ptr(), 1e-6, plus_one, alone.data_ptr(), width
    )
    assert torch.equal(alone[0], y[-1, :width])
    pool.rms_norm(x.data_ptr(), rows, width, width + 5, 0, 1e-6, False, x.data_ptr(), width + 5)
    close(x[:, :width], normal)


@pytest.mark.parametrize("width", [24, 63, 128])
def test_gated_rms_norm(pool: _native.Pool, width: int) -> None:
    rows = 1000
    x, gate, w = torch.randn(rows, width), torch.randn(rows, width) * 20, torch.randn(width)
    y = nans(rows, width)
    pool.gated_rms_norm(
        x.data_ptr(), gate.data_ptr(), rows, width, w.data_ptr(), 1e-5, y.data_ptr()
    )
    x64, g64 = x.double(), gate.double()
    normal = x64 * (x64.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    close(y, normal * w.double() * g64 * torch.sigmoid(g64))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotated"), [(24, 24), (63, 16), (128, 64), (10, 6), (8, 0)])
def test_rope(pool: _native.Pool, head_dim: int, rotated: int, interleaved: bool) -> None:
    tokens, heads, stride = 50, 3, 3 * head_dim + 7
    x = torch.randn(tokens, stride)
    angle = torch.rand(tokens, rotated // 2) * 6
    cos, sin = angle.cos(), angle.sin()
    wanted = x[:, : heads * head_dim].double().reshape(tokens, heads, head_dim).clone()
    turned = wanted[..., :rotated]
    if interleaved:
        a, b = turned[..., 0::2].clone(), turned[..., 1::2].clone()
        where = (slice(0, None, 2), slice(1, None, 2))
    else:
        a, b = turned[..., : rotated // 2].clone(), turned[..., rotated // 2 :].clone()
        where = (slice(0, rotated // 2), slice(rotated // 2, None))
    c, s = cos.double()[:, None], sin.double()[:, None]
    turned[..., where[0]] = a * c - b * s
    turned[..., where[1]] = b * c + a * s
    rest = x[:, heads * head_dim :].clone()
    pool.rope(
        x.data_ptr(), tokens, heads, stride, head_dim, cos.data_ptr(), sin.data_ptr(), rotated,
        interleaved,
    )  # fmt: skip
    close(x[:, : heads * head_dim].reshape(tokens, heads, head_dim), wanted)
    assert torch.equal(x[:, heads * head_dim :], rest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_store_kv(pool: _native.Pool, dtype: torch.dtype) -> None:
    tokens, width, slots = 700, 72, 900
    x = torch.randn(tokens, width + 3)
    x[0, :4] = torch.tensor([math.inf, -math.inf, 3.3e38, 1e-40])
    x[1, 0] = math.nan
    where = torch.randperm(slots)[:tokens]
    kv = torch.full((slots, width), 7.0, dtype=dtype)
    wanted = kv.clone()
    wanted[where] = x[:, :width].to(dtype)
    pool.store_kv(
        x.data_ptr(), tokens, width + 3, width, where.data_ptr(), kv.data_ptr(),
        0 if dtype == torch.float32 else 1,
    )  # fmt: skip
    assert torch.equal(kv.nan_to_num(9.5), wanted.nan_to_num(9.5))


def run_conv(
    pool: _native.Pool, x: Tensor, w: Tensor, bias: Tensor | None, lengths: list[int],
    state: Tensor, slots: list[int], *, silu: bool,
) -> Tensor:  # fmt: skip
    channels, kernel = w.shape
    offsets, where = ints([0, *itertools.accumulate(lengths)]), ints(slots)
    y = nans(x.shape[0], channels)
    pool.conv(
        x.data_ptr(), x.shape[0], x.stride(0), channels, kernel, w.data_ptr(),
        0 if bias is None else bias.data_ptr(), len(lengths), offsets.data_ptr(),
        where.data_ptr(), state.data_ptr(), silu, y.data_ptr(),
    )  # fmt: skip
    return y


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize(("channels", "kernel"), [(1, 1), (63, 4), (200, 2), (1024, 4), (65, 7)])
def test_conv(pool: _native.Pool, channels: int, kernel: int, silu: bool) -> None:
    lengths, slots = [1, 5, 0, 40, 2], [4, 0, 2, 5, 1]
    x = torch.randn(sum(lengths), channels + 9)
    w, bias = torch.randn(channels, kernel), torch.randn(channels) if silu else None
    state = torch.randn(6, channels, kernel - 1)
    start = state.clone()
    y = run_conv(pool, x, w, bias, lengths, state, slots, silu=silu)
    at = 0
    for length, slot in zip(lengths, slots, strict=True):
        whole = torch.cat([start[slot].double(), x[at : at + length, :channels].double().T], 1)
        if length:
            wanted = torch.nn.functional.conv1d(
                whole[None], w.double()[:, None], bias.double() if silu else None, groups=channels
            )[0].T
            close(y[at : at + length], wanted * torch.sigmoid(wanted) if silu else wanted)
        assert torch.equal(state[slot].double(), whole[:, whole.shape[1] - kernel + 1 :])
        at += length
    assert torch.equal(state[3], start[3])
    # One call a token must give the same bits.
    again, at = start.clone(), 0
    for length, slot in zip(lengths, slots, strict=True):
        for t in range(at, at + length):
            one = run_conv(pool, x[t : t + 1], w, bias, [1], again, [slot], silu=silu)
            assert torch.equal(one[0], y[t])
        at += length
    assert torch.equal(again, state)


class DeltaCase:
    """Inputs of one delta call: q, k and v are slices of one wider row."""

    def __init__(self, lengths: list[int], heads: tuple[int, int], dims: tuple[int, int]) -> None:
        (self.key_heads, self.value_heads), (self.key_dim, self.value_dim) = heads, dims
        tokens, keys = sum(lengths), heads[0] * dims[0]
        self.lengths = lengths
        self.x = torch.randn(tokens, 2 * keys + heads[1] * dims[1] + 3)
        self.decay = -torch.rand(tokens, heads[1]) * 2
        self.beta = torch.rand(tokens, heads[1])
        self.state = torch.randn(len(lengths) + 1, heads[1], *dims)
        self.slots = list(torch.randperm(len(lengths) + 1)[: len(lengths)].tolist())
        self.parts = (0, keys, 2 * keys)

    def run(
        self, pool: _native.Pool, first: int, lengths: list[int], slots: list[int], state: Tensor,
        *, normalize: bool = True,
    ) -> Tensor:  # fmt: skip
        x, size = self.x[first : first + sum(lengths)], 4
        offsets, where = ints([0, *itertools.accumulate(lengths)]), ints(slots)
        decay, beta = self.decay[first:].contiguous(), self.beta[first:].contiguous()
        out = nans(x.shape[0], self.value_heads, self.value_dim)
        q, k, v = (x.data_ptr() + size * part for part in self.parts)
        pool.delta(
            q=q, k=k, v=v, q_stride=x.stride(0), k_stride=x.stride(0), v_stride=x.stride(0),
            decay=decay.data_ptr(), beta=beta.data_ptr(), out=out.data_ptr(),
            sequences=len(lengths), offsets=offsets.data_ptr(), slots=where.data_ptr(),
            state=state.data_ptr(), key_heads=self.key_heads, value_heads=self.value_heads,
            key_dim=self.key_dim, value_dim=self.value_dim, normalize=normalize,
            scale=self.key_dim**-0.5,
        )  # fmt: skip
        return out

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k [T, value_heads, key_dim] and v [T, value_heads, value_dim] in float64."""
        tokens, group = self.x.shape[0], self.value_heads // self.key_heads
        _, k_at, v_at = self.parts
        x = self.x.double()
        q, k = x[:, :k_at], x[:, k_at:v_at]
        v = x[:, v_at : v_at + self.value_heads * self.value_dim]
        q, k = (
            t.reshape(tokens, self.key_heads, self.key_dim).repeat_interleave(group, 1)
            for t in (q, k)
        )
        return q, k, v.reshape(tokens, self.value_heads, self.value_dim)


def delta_loop(case: DeltaCase, state: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor]:
    q, k, v = case.split()
    if normalize:
        q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    state, out, at = state.double(), torch.zeros_like(v), 0
    for length, slot in zip(case.lengths, case.slots, strict=True):
        for t in range(at, at + length):
            s = state[slot] * case.decay[t].double().exp()[:, None, None]
            change = (v[t] - torch.einsum("hk,hkv->hv", k[t], s)) * case.beta[t].double()[:, None]
            state[slot] = s + k[t][:, :, None] * change[:, None, :]
            out[t] = torch.einsum("hk,hkv->hv", q[t] * case.key_dim**-0.5, state[slot])
        at += length
    return out, state


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("heads", "dims"),
    [((1, 3), (24, 40)), ((2, 4), (63, 63)), ((2, 2), (128, 128)), ((1, 1), (5, 3))],
)
def test_delta(
    pool: _native.Pool, heads: tuple[int, int], dims: tuple[int, int], normalize: bool
) -> None:
    case = DeltaCase([3, 1, 0, 70, 1], heads, dims)
    if not normalize:  # keep k short, or the recurrence itself grows without bound
        case.x[:, : case.parts[2]] /= dims[0] ** 0.5
    state = case.state.clone()
    out = case.run(pool, 0, case.lengths, case.slots, state, normalize=normalize)
    wanted, wanted_state = delta_loop(case, case.state, normalize=normalize)
    close(out, wanted, 5e-6)
    close(state, wanted_state, 5e-6)
    # The same bits, cut in other places and one sequence at a time.
    again, at = case.state.clone(), 0
    for length, slot in zip(case.lengths, case.slots, strict=True):
        for cut in (slice(0, length // 3), slice(length // 3, length)):
            count = cut.stop - cut.start
            part = case.run(pool, at + cut.start, [count], [slot], again, normalize=normalize)
            assert torch.equal(part, out[at + cut.start : at + cut.stop])
        at += length
    assert torch.equal(again, state)


def test_delta_agrees_with_transformers(pool: _native.Pool) -> None:
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as theirs

    case = DeltaCase([37], (2, 4), (32, 48))
    case.state.zero_()
    q, k, v = (t.float()[None] for t in case.split())
    wanted, wanted_state = theirs.torch_recurrent_gated_delta_rule(
        q, k, v, g=case.decay[None], beta=case.beta[None], initial_state=None,
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    out = case.run(pool, 0, case.lengths, case.slots, case.state)
    close(out, wanted[0], 1e-5)
    close(case.state[case.slots[0]], wanted_state[0], 1e-5)


def route_reference(
    logits: Tensor, bias: Tensor | None, *, score: int, top_k: int, groups: int, keep_groups: int
) -> tuple[Tensor, Tensor]:
    """Ids, best first, and unscaled scores; in float32 choices so that ties are the same ties."""
    scores = {0: logits.softmax(-1), 1: logits, 2: logits.sigmoid()}[score]
    choice = scores if bias is None else scores + bias
    if groups > 1:
        grouped = choice.reshape(len(logits), groups, -1)
        best = grouped.sort(-1, descending=True)[0][..., :2].sum(-1)
        kept = best.sort(dim=-1, descending=True, stable=True)[1][:, :keep_groups]
        mask = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, False)
        choice = grouped.masked_fill(mask[..., None], -math.inf).reshape(len(logits), -1)
    ids = choice.sort(dim=-1, descending=True, stable=True)[1][:, :top_k]
    picked = scores.gather(1, ids)
    return ids, picked.softmax(-1) if score == 1 else picked


@pytest.mark.parametrize("score", [0, 1, 2])
@pytest.mark.parametrize(
    ("experts", "top_k", "groups", "keep", "biased", "renormalize"),
    [
        (128, 8, 1, 1, False, True),
        (63, 5, 0, 0, True, False),
        (64, 6, 8, 3, True, True),
        (4, 4, 2, 2, False, False),
        (12, 2, 12, 3, False, True),
        (1, 1, 1, 1, False, True),
    ],
)
def test_route(
    pool: _native.Pool, score: int, experts: int, top_k: int, groups: int, keep: int,
    biased: bool, renormalize: bool,
) -> None:  # fmt: skip
    tokens = 400
    # Halves are exact, so equal scores are equal to the bit and ties really occur.
    logits = torch.randint(-6, 7, (tokens, experts)).float() / 2
    bias = torch.randint(-2, 3, (experts,)).float() if biased else None
    ids = torch.full((tokens, top_k), -7, dtype=torch.int32)
    weights = nans(tokens, top_k)
    pool.route(
        logits=logits.data_ptr(), tokens=tokens, experts=experts, top_k=top_k, score=score,
        bias=0 if bias is None else bias.data_ptr(), groups=groups, keep_groups=keep,
        renormalize=renormalize, renorm_eps=1e-20, scale=2.5, ids=ids.data_ptr(),
        weights=weights.data_ptr(),
        scales=0,
    )  # fmt: skip
    wanted, scores = route_reference(
        logits, bias, score=score, top_k=top_k, groups=groups, keep_groups=keep
    )
    if renormalize:
        scores = scores / (scores.sum(-1, keepdim=True) + 1e-20)
    close(weights, scores * 2.5)
    # Sums of biased softmax scores may round apart in the last bit; ids must agree elsewhere.
    assert (
        ((ids == wanted).all(-1).float().mean() > 0.98)
        if biased
        else torch.equal(ids.long(), wanted)
    )


def test_arguments_are_checked(pool: _native.Pool) -> None:
    x = torch.zeros(4)
    with pytest.raises(ValueError, match="found top 5 of 4 experts; expected"):
        pool.route(
            logits=x.data_ptr(), tokens=1, experts=4, top_k=5, score=0, bias=0, groups=0,
            keep_groups=0, renormalize=True, renorm_eps=0.0, scale=1.0, scales=0, ids=0, weights=0,
        )  # fmt: skip
    with pytest.raises(ValueError, match="found 3 rotated of 4; expected an even number"):
        pool.rope(x.data_ptr(), 1, 1, 4, 4, x.data_ptr(), x.data_ptr(), 3, False)
    with pytest.raises(ValueError, match="KV format 2; expected 0"):
        pool.store_kv(x.data_ptr(), 1, 4, 4, x.data_ptr(), x.data_ptr(), 2)
