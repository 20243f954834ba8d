"""Configs of Gemma 4, Llama 4, Hunyuan A13B and Trinity as published, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.models.registry import family_of
from headrace.models.spec import (
    Attention,
    Dense,
    Llama3Scaling,
    ModelSpec,
    Moe,
    OutputGate,
    Proportional,
    QkNorm,
    Temperature,
)
from headrace.weights.checkpoint import SafetensorsCheckpoint

GEMMA4: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2816,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 2112,
    "max_position_embeddings": 262144,
    "model_type": "gemma4_text",
    "moe_intermediate_size": 704,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "top_k_experts": 8,
    "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": False,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}
SCOUT: dict[str, Any] = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": 4,
    "cache_implementation": "hybrid",
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "model_type": "llama4_text",
    "no_rope_layers": [],
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "router_jitter_noise": 0.0,
    "tie_word_embeddings": False,
    "use_qk_norm": True,
    "vocab_size": 202048,
}
HUNYUAN: dict[str, Any] = {
    "attention_head_dim": 128,
    "cla_share_factor": 2,
    "dense_list": [4096, 0],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 3072,
    "max_position_embeddings": 32768,
    "model_type": "hunyuan_v1_moe",
    "moe_intermediate_size": [3072] * 32,
    "moe_layer_num_skipped": 0,
    "moe_topk": [8] * 32,
    "norm_topk_prob": True,
    "norm_type": "rms",
    "num_attention_heads": 32,
    "num_experts": 64,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_shared_expert": [1] * 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "alpha": 1000.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "type": "dynamic",
    },
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "use_cla": False,
    "use_mixed_mlp_moe": True,
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
    "vocab_size": 128167,
}
TRINITY: dict[str, Any] = {
    "global_attn_every_n_layers": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "load_balance_coeff": 0.001,
    "max_position_embeddings": 131072,
    "model_type": "afmoe",
    "moe_intermediate_size": 1024,
    "mup_enabled": True,
    "n_group": 1,
    "num_attention_heads": 32,
    "num_dense_layers": 2,
    "num_expert_groups": 1,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
    "num_limited_groups": 1,
    "num_shared_experts": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000,
    "route_norm": True,
    "route_scale": 2.826,
    "score_func": "sigmoid",
    "sliding_window": 2048,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_mm": True,
    "vocab_size": 200192,
}


MIMO: dict[str, Any] = {
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "attention_bias": False,
    "attention_chunk_size": 128,
    "attention_value_scale": 0.707,
    "head_dim": 192,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 1],
    "intermediate_size": 16384,
    "layernorm_epsilon": 1e-05,
    "max_position_embeddings": 262144,
    "model_type": "mimo_v2_flash",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": [0, *[1] * 7],
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 4,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "sliding_window": 128,
    "sliding_window_size": 128,
    "swa_head_dim": 192,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_rope_theta": 10000,
    "swa_v_head_dim": 128,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 152576,
}


def spec_of(config: dict[str, Any], **more: Any) -> ModelSpec:
    return family_of(SafetensorsCheckpoint(Path("m"), {**config, **more}, {}))[1]


def attention_of(spec: ModelSpec, layer: int) -> Attention:
    mixer = spec.layers[layer].mixer
    assert isinstance(mixer, Attention)
    return mixer


def moe_of(spec: ModelSpec, layer: int) -> Moe:
    ffn = spec.layers[layer].ffn
    assert isinstance(ffn, Moe)
    return ffn


def test_gemma4() -> None:
    spec = spec_of({"text_config": GEMMA4, "model_type": "gemma4", "image_token_id": 258880})
    near, far = attention_of(spec, 0), attention_of(spec, 5)
    assert [attention_of(spec, i).window > 0 for i in range(30)] == [i % 6 < 5 for i in range(30)]
    assert (near.head_dim, near.kv_heads, near.window, near.values_of_keys) == (256, 8, 1024, False)
    assert (far.head_dim, far.kv_heads, far.window, far.values_of_keys) == (512, 2, 0, True)
    assert near.scale == far.scale == 1.0
    assert far.rope is not None
    assert (far.rope.rotated, far.rope.scaling) == (512, Proportional(64))
    moe = moe_of(spec, 0)
    assert (moe.experts, moe.router.top_k, moe.width, moe.beside) == (
        *(128, 8, 704),
        Dense(2112, moe.activation),
    )
    assert (spec.tied, spec.logit_cap, round(spec.embed_scale**2)) == (True, 30.0, 2816)


def test_llama4() -> None:
    spec = spec_of({"text_config": SCOUT, "model_type": "llama4"})
    near, far = attention_of(spec, 0), attention_of(spec, 3)
    assert (near.window, near.chunked, near.qk_norm, near.temperature) == (
        *(8192, True, QkNorm.UNIT),
        None,
    )
    assert near.rope is not None
    assert near.rope.interleaved
    assert near.rope.scaling == Llama3Scaling(16.0, 1.0, 1.0, 8192)
    assert (far.window, far.rope, far.qk_norm) == (0, None, QkNorm.NONE)
    assert far.temperature == Temperature(8192, 0.1)
    assert spec.max_context == 10485760
    maverick = spec_of(SCOUT, interleave_moe_layer_step=2, use_qk_norm=False, num_local_experts=128)
    assert isinstance(maverick.layers[0].ffn, Dense)
    assert moe_of(maverick, 1).experts == 128
    assert attention_of(maverick, 0).qk_norm == QkNorm.NONE


def test_hunyuan() -> None:
    spec = spec_of(HUNYUAN)
    mixer, moe = attention_of(spec, 7), moe_of(spec, 7)
    assert mixer.rope is not None
    assert mixer.rope.theta == pytest.approx(10000.0 * 1000.0 ** (128 / 126))
    assert mixer.rotate_first
    assert (moe.experts, moe.router.top_k, moe.width) == (64, 8, 3072)
    assert moe.shared is not None
    assert moe.shared.width == 3072


def test_trinity() -> None:
    spec = spec_of(TRINITY)
    assert [isinstance(layer.ffn, Dense) for layer in spec.layers[:4]] == [True, True, False, False]
    assert attention_of(spec, 3).rope is None
    assert attention_of(spec, 2).gate == OutputGate.APART
    assert moe_of(spec, 2).router.scale == 2.826
    assert all(layer.norms_behind for layer in spec.layers)


def test_mimo() -> None:
    spec = spec_of(MIMO)
    near, far = attention_of(spec, 1), attention_of(spec, 5)
    assert (near.window, near.kv_heads, near.sinks) == (129, 8, True)
    assert (far.window, far.kv_heads, far.sinks) == (0, 4, False)
    assert near.rope is not None
    assert far.rope is not None
    assert (near.rope.theta, far.rope.theta, far.rope.rotated) == (1e4, 5e6, 64)
    assert (near.head_dim, near.value_dim, near.value_scale) == (192, 128, 0.707)
    assert isinstance(spec.layers[0].ffn, Dense)
    assert moe_of(spec, 1).shared is None
    assert spec.eps == 1e-5


@pytest.mark.parametrize(
    ("config", "change", "said"),
    [
        (GEMMA4, {"num_kv_shared_layers": 10}, "num_kv_shared_layers = 10"),
        (GEMMA4, {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input = 256"),
        (GEMMA4, {"enable_moe_block": False}, "enable_moe_block = False"),
        (GEMMA4, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        (GEMMA4, {"per_layer_config": {"4": {"head_dim": 8}}}, "4 = {'head_dim': 8}"),
        (GEMMA4, {"num_global_key_value_heads": 3}, "num_global_key_value_heads = 3"),
        (SCOUT, {"num_experts_per_tok": 2}, "num_experts_per_tok = 2"),
        (SCOUT, {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        (SCOUT, {"layer_types": ["chunked_attention"] * 48, "attention_chunk_size": None}, "chunk"),
        (HUNYUAN, {"use_cla": True}, "use_cla = True"),
        (HUNYUAN, {"moe_topk": [8, 4]}, "moe_topk"),
        (HUNYUAN, {"moe_topk": [65] * 32}, "at most 64"),
        (HUNYUAN, {"num_experts": 7, "moe_topk": 8}, "moe_topk = 8"),
        (HUNYUAN, {"head_dim": 2, "attention_head_dim": 2}, "heads of 2 channels"),
        (SCOUT, {"rope_scaling": {"type": "divided", "divisors": [10**400] * 64}}, "divisors"),
        (TRINITY, {"rope_theta": 1}, "rope_theta = 1"),
        (TRINITY, {"route_norm": False}, "route_norm = False"),
        (MIMO, {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias = True"),
        (MIMO, {"moe_layer_freq": [1, 0]}, "moe_layer_freq"),
        (MIMO, {"hybrid_layer_pattern": [2] * 8}, "hybrid_layer_pattern"),
    ],
)
def test_what_is_not_modelled_is_refused(
    config: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_of(config, **change)
    assert said in str(caught.value)
