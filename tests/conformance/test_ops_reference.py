"""The references against independent implementations: torch's own functions and transformers'
modules.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headrace.ops.activation.reference import decay, decay_rate, sigmoid
from headrace.ops.reference import reference_ops
from headrace.ops.spans import Spans
from headrace.ops.table import Activation, ExpertRows, Linear, Router, Routing, Score

OPS = reference_ops()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def one_sequence(tokens: int, context: int = 0) -> Spans:
    """Blocks of 4 in reverse order."""
    blocks = -(-(tokens + context) // 4)
    table = torch.arange(blocks - 1, -1, -1, dtype=torch.int32)[None]
    at = torch.arange(context, context + tokens)
    slots = table[0].long()[at // 4] * 4 + at % 4
    offsets = torch.tensor([0, tokens], dtype=torch.int32)
    return Spans(
        offsets,
        torch.tensor([context], dtype=torch.int32),
        table,
        slots,
        torch.zeros(1, dtype=torch.int32),
        4,
    )


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


def test_norms() -> None:
    x, w, gate = normal(5, 3, 17), normal(17, seed=1), normal(5, 3, 17, seed=2)
    close(OPS.rms_norm(x, w, 1e-2), functional.rms_norm(x, [17], w, 1e-2))
    close(OPS.rms_norm(x, w, 1e-2, plus_one=True), functional.rms_norm(x, [17], w + 1, 1e-2))
    close(OPS.rms_norm(x, None, 1e-2), functional.rms_norm(x, [17], None, 1e-2))
    gated = functional.rms_norm(x, [17], w, 1e-2) * functional.silu(gate)
    close(OPS.gated_rms_norm(x, gate, w, 1e-2), gated)


def test_linear_parts_lie_side_by_side() -> None:
    x, a, b, bias = normal(3, 9), normal(4, 9, seed=1), normal(2, 9, seed=2), normal(6, seed=3)
    close(OPS.linear(x, Linear((a, b), bias)), functional.linear(x, torch.cat([a, b]), bias))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_a_complex_product(interleaved: bool) -> None:
    x, angle = normal(5, 2, 14), normal(5, 4, seed=1)
    part = x[..., :8]
    pairs = (
        part.unflatten(-1, (4, 2)) if interleaved else part.unflatten(-1, (2, 4)).transpose(-1, -2)
    )
    turned = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angle)[:, None]
    flat = torch.view_as_real(turned)
    flat = flat.flatten(-2) if interleaved else flat.transpose(-1, -2).flatten(-2)
    y = x.clone()
    OPS.rope(y, angle.cos(), angle.sin(), interleaved=interleaved)
    close(y, torch.cat([flat, x[..., 8:]], -1))


@pytest.mark.parametrize("window", [0, 3])
def test_attention_is_masked_softmax_over_the_paged_keys(window: int) -> None:
    tokens, context, heads, groups = 5, 6, 6, 2
    k, v = normal(11, groups, 8, seed=1), normal(11, groups, 7, seed=2)
    q, spans, everything = normal(tokens, heads, 8), one_sequence(tokens, context), one_sequence(11)
    k_pool, v_pool = normal(12, groups, 8, seed=3), normal(12, groups, 7, seed=4)
    OPS.store_kv(k, k_pool, everything.kv_slots_T)
    OPS.store_kv(v, v_pool, everything.kv_slots_T)
    at = torch.arange(context, 11)[:, None]
    seen = (torch.arange(11) <= at) & (torch.arange(11) > at - (window or 99))
    found = OPS.attention(q, k_pool, v_pool, spans, scale=0.4, window=window)
    expected = functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), seen, scale=0.4, enable_gqa=True
    ).transpose(0, 1)
    close(found, expected)
    # A sink is one more key whose value is zero.
    sinks = normal(heads, seed=5)
    logits = torch.einsum("thd,jhd->htj", q, k.repeat_interleave(3, 1)) * 0.4
    logits = logits.masked_fill(~seen, -torch.inf)
    weights = torch.cat([logits, sinks[:, None, None].expand(-1, tokens, 1)], -1).softmax(-1)
    expected = torch.einsum("htj,jhv->thv", weights[..., :-1], v.repeat_interleave(3, 1))
    close(
        OPS.attention(q, k_pool, v_pool, spans, scale=0.4, window=window, sinks_H=sinks), expected
    )


def test_conv_is_a_grouped_conv1d() -> None:
    x, weight, bias, past = (
        normal(9, 5),
        normal(5, 4, seed=1),
        normal(5, seed=2),
        normal(1, 5, 3, seed=3),
    )
    whole = torch.cat([past[0].T, x])
    expected = functional.conv1d(whole.T[None], weight[:, None], bias, groups=5)[0].T
    state = past.clone()
    close(OPS.conv(x, weight, bias, state, one_sequence(9), silu=True), functional.silu(expected))
    assert torch.equal(state[0].T, x[-3:])


def test_delta_equals_the_chunked_rule_of_transformers() -> None:
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import torch_chunk_gated_delta_rule

    q, k, v = normal(70, 2, 9), normal(70, 2, 9, seed=1), normal(70, 6, 11, seed=2)
    g, beta, start = (
        -normal(70, 6, seed=3).abs(),
        normal(70, 6, seed=4).sigmoid(),
        normal(1, 6, 9, 11, seed=5),
    )
    repeated = [x.repeat_interleave(3, 1)[None] for x in (q, k)]
    expected, end = torch_chunk_gated_delta_rule(
        *repeated,
        v[None],
        g=g[None],
        beta=beta[None],
        initial_state=start,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    state = start.clone()
    found = OPS.delta(q, k, v, g, beta, state, one_sequence(70), normalize=True, scale=9**-0.5)
    torch.testing.assert_close(found, expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, end, rtol=1e-4, atol=1e-5)


def test_decay_and_sigmoid() -> None:
    a = torch.cat([normal(40, 3) * 5, torch.tensor([[90.0, -90.0, 0.0]])])
    a_log, bias = normal(3, seed=1), normal(3, seed=2)
    close(decay(a, decay_rate(a_log), bias), -a_log.exp() * functional.softplus(a + bias))
    close(sigmoid(a), torch.sigmoid(a))


def test_sigmoid_router_with_groups_equals_deepseek_v3() -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = DeepseekV3Config(
        hidden_size=20,
        moe_intermediate_size=6,
        n_routed_experts=24,
        n_shared_experts=1,
        n_group=6,
        topk_group=3,
        num_experts_per_tok=5,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
    )
    block = DeepseekV3MoE(config)
    x = normal(30, 20, seed=6)
    with torch.no_grad():
        for name, p in block.named_parameters():
            p.copy_(normal(*p.shape, seed=len(name)) * 0.3)
        block.gate.e_score_correction_bias.copy_(normal(24, seed=7) * 0.3)
        expected = block(x[None])[0]
        w = block.gate.weight
        router = Router(5, Score.SIGMOID, 6, 3, renormalize=True, renorm_eps=1e-20, scale=2.5)
        routing = OPS.route(x @ w.T, block.gate.e_score_correction_bias, router)
        gate, up = block.experts.gate_up_proj.chunk(2, 1)
        rows = ExpertRows(list(gate), list(up), list(block.experts.down_proj), Activation.SILU)
        found = OPS.experts(x, routing, rows) + block.shared_experts(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_softmax_routers() -> None:
    logits = normal(9, 12)
    best = logits.topk(4, -1)
    found = OPS.route(logits, None, Router(4, Score.SOFTMAX_OF_TOP_K, renormalize=False))
    assert torch.equal(found.ids_TX.long(), best.indices)
    close(found.weights_TX, best.values.softmax(-1))
    close(OPS.route(logits, None, Router(4)).weights_TX, best.values.softmax(-1))
    plain = OPS.route(logits, None, Router(4, renormalize=False)).weights_TX
    close(plain, logits.softmax(-1).gather(1, best.indices))


def test_experts_skip_negative_ids_and_sum_the_rest() -> None:
    g, u, d = normal(3, 5, 8), normal(3, 5, 8, seed=1), normal(3, 8, 5, seed=2)
    x, ids = normal(2, 8, seed=3), torch.tensor([[2, 0], [-1, 1]], dtype=torch.int32)
    weights = torch.tensor([[0.5, 2.0], [9.0, 3.0]])
    rows = ExpertRows(list(g), list(u), list(d), Activation.GELU_TANH)

    def one(e: int, x: Tensor) -> Tensor:
        return d[e] @ (functional.gelu(g[e] @ x, approximate="tanh") * (u[e] @ x))

    found = OPS.experts(x, Routing(ids, weights), rows)
    close(found[0], 0.5 * one(2, x[0]) + 2.0 * one(0, x[0]))
    close(found[1], 3.0 * one(1, x[1]))
