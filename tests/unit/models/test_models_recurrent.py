"""Configs of LFM2-MoE, Nemotron 3 Nano, Kimi-Linear and Granite 4, as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.models.facts import _state
from headrace.models.registry import family_of
from headrace.models.spec import (
    Attention,
    ChannelDelta,
    Dense,
    LatentAttention,
    ModelSpec,
    Moe,
    QkNorm,
    Rope,
    SharedExpert,
    ShortConv,
    Ssm,
)
from headrace.ops.table import Activation, Score
from headrace.planning.facts import RecurrentNeed
from headrace.weights.checkpoint import SafetensorsCheckpoint

LFM2_8B: dict[str, Any] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "dtype": "bfloat16",
    "eos_token_id": 7,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 7168,
    "layer_types": [
        *["conv", "conv", "full_attention", "conv", "conv", "conv"],
        *["full_attention", "conv", "conv", "conv"] * 3,
        *["full_attention", "conv", "conv", "full_attention", "conv", "conv"],
    ],
    "max_position_embeddings": 128000,
    "model_type": "lfm2_moe",
    "moe_intermediate_size": 1792,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rope_theta": 1000000.0,
    "routed_scaling_factor": 1.0,
    "tie_embedding": True,
    "use_cache": True,
    "use_expert_bias": True,
    "vocab_size": 65536,
}

NEMOTRON_3_NANO: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
    "bos_token_id": 1,
    "chunk_size": 128,
    "conv_kernel": 4,
    "eos_token_id": 2,
    "expand": 2,
    "head_dim": 128,
    "hidden_dropout": 0.0,
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "initializer_range": 0.02,
    "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 64,
    "mamba_proj_bias": False,
    "mamba_ssm_cache_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h",
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1,
    "n_groups": 8,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 52,
    "num_key_value_heads": 2,
    "num_logits_to_keep": 1,
    "partial_rotary_factor": 1.0,
    "rescale_prenorm_residual": True,
    "residual_in_fp32": False,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "sliding_window": None,
    "ssm_state_size": 128,
    "tie_word_embeddings": False,
    "time_step_floor": 0.0001,
    "time_step_limit": [0.0, float("inf")],
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "topk_group": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "use_mamba_kernels": True,
    "vocab_size": 131072,
}

KIMI_LINEAR: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
    "bos_token_id": 163584,
    "dtype": "bfloat16",
    "eos_token_id": 163586,
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [i for i in range(1, 27) if i % 4],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "pad_token_id": 163839,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_cache": True,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}

GRANITE_4_SMALL: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_multiplier": 0.0078125,
    "bos_token_id": 100257,
    "embedding_multiplier": 12,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "init_method": "mup",
    "initializer_range": 0.1,
    "intermediate_size": 768,
    "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
    "logits_scaling": 16,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "mamba_proj_bias": False,
    "max_position_embeddings": 131072,
    "model_type": "granitemoehybrid",
    "normalization_function": "rmsnorm",
    "num_attention_heads": 32,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "num_local_experts": 72,
    "output_router_logits": False,
    "pad_token_id": 100256,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000,
    "router_aux_loss_coef": 0.0,
    "shared_intermediate_size": 1536,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 100352,
}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return family_of(SafetensorsCheckpoint(Path("model"), config, {}))[1]


def test_lfm2_moe() -> None:
    spec = spec_of(LFM2_8B)
    assert (spec.tied, spec.eps, len(spec.layers)) == (True, 1e-5, 24)
    assert [isinstance(layer.ffn, Dense) for layer in spec.layers] == [True] * 2 + [False] * 22
    conv, attention, moe = spec.layers[0].mixer, spec.layers[2].mixer, spec.layers[2].ffn
    assert conv == ShortConv(channels=2048, kernel=3)
    assert isinstance(attention, Attention)
    assert isinstance(moe, Moe)
    assert (attention.qk_norm, attention.head_dim) == (QkNorm.HEAD, 64)
    assert attention.rope == Rope(1e6, 64)
    router = moe.router
    assert (router.top_k, router.score, router.renorm_eps) == (4, Score.SIGMOID, 1e-6)
    assert (moe.experts, moe.width, moe.correction_bias) == (32, 1792, True)
    with pytest.raises(CheckpointError, match="layer_types"):
        spec_of({**LFM2_8B, "layer_types": ["mamba"] * 24})


def test_nemotron_3_nano() -> None:
    spec = spec_of(NEMOTRON_3_NANO)
    kinds = [type(layer.mixer or layer.ffn) for layer in spec.layers]
    assert [kinds.count(kind) for kind in (Ssm, Moe, Attention)] == [23, 23, 6]
    assert [layer.norms for layer in spec.layers[:2]] == [("norm", None), (None, "norm")]
    ssm, moe, attention = spec.layers[0].mixer, spec.layers[1].ffn, spec.layers[5].mixer
    assert isinstance(ssm, Ssm)
    assert isinstance(moe, Moe)
    assert isinstance(attention, Attention)
    assert (ssm.inner, ssm.channels) == (4096, 6144)
    assert [_state(layer) for layer in spec.layers[:2]] == [
        RecurrentNeed((64, 128, 64), (6144, 3)),
        None,
    ]
    assert (attention.rope, attention.kv_heads, attention.head_dim) == (None, 2, 128)
    assert (moe.activation, moe.activation.has_up) == (Activation.RELU_SQUARED, False)
    assert moe.shared == SharedExpert(3712, gated=False)
    assert (moe.router.score, moe.router.scale, moe.correction_bias) == (Score.SIGMOID, 2.5, True)
    words = {"M": "mamba", "E": "moe", "*": "attention"}
    named = [words[letter] for letter in NEMOTRON_3_NANO["hybrid_override_pattern"]]
    other = {**NEMOTRON_3_NANO, "layers_block_type": named, "hybrid_override_pattern": None}
    assert spec_of(other) == spec
    for key, value in (
        ("hybrid_override_pattern", "MEX"),
        ("layers_block_type", 5),
        ("layer_types", True),
        ("time_step_limit", [0.001, 0.1]),
        ("moe_latent_size", 1024),
        ("mlp_bias", True),
    ):
        with pytest.raises(CheckpointError, match=key):
            spec_of({**NEMOTRON_3_NANO, key: value})


def test_kimi_linear() -> None:
    spec = spec_of(KIMI_LINEAR)
    kinds = [type(layer.mixer) for layer in spec.layers]
    assert [i + 1 for i, kind in enumerate(kinds) if kind is LatentAttention] == [
        *range(4, 25, 4),
        27,
    ]
    assert [isinstance(layer.ffn, Dense) for layer in spec.layers] == [True] + [False] * 26
    delta, latent, moe = spec.layers[0].mixer, spec.layers[3].mixer, spec.layers[1].ffn
    assert delta == ChannelDelta(heads=32, head_dim=128, kernel=4)
    assert _state(spec.layers[0]) == RecurrentNeed((32, 128, 128), (3 * 4096, 3))
    assert isinstance(latent, LatentAttention)
    assert isinstance(moe, Moe)
    assert (latent.turned, latent.rank, latent.width) == (False, 512, 576)
    assert latent.scale == 192**-0.5
    assert (moe.experts, moe.router.top_k, moe.router.scale) == (256, 8, 2.446)
    assert moe.shared == SharedExpert(1024, gated=False)
    assert spec.max_context == 1048576
    with pytest.raises(CheckpointError, match="num_expert_group = 3; expected a divisor of 256"):
        spec_of({**KIMI_LINEAR, "num_expert_group": 3})
    with pytest.raises(CheckpointError, match="moe_router_activation_func"):
        spec_of({**KIMI_LINEAR, "moe_router_activation_func": "softmax"})
    with pytest.raises(CheckpointError, match="mla_use_nope"):
        spec_of({**KIMI_LINEAR, "mla_use_nope": False})


def test_granite_4_small() -> None:
    spec = spec_of(GRANITE_4_SMALL)
    kinds = [isinstance(layer.mixer, Attention) for layer in spec.layers]
    assert [i for i, attends in enumerate(kinds) if attends] == [5, 15, 25, 35]
    ssm, attention, moe = spec.layers[0].mixer, spec.layers[5].mixer, spec.layers[0].ffn
    assert ssm == Ssm(heads=128, head_dim=64, groups=1, state=128, kernel=4)
    assert _state(spec.layers[0]) == RecurrentNeed((128, 128, 64), (8448, 3))
    assert isinstance(attention, Attention)
    assert isinstance(moe, Moe)
    assert (attention.rope, attention.scale) == (None, 0.0078125)
    assert (moe.router.score, moe.shared) == (
        Score.SOFTMAX_OF_TOP_K,
        SharedExpert(1536, gated=False),
    )
    assert (spec.embed_scale, spec.residual_scale, spec.logit_scale) == (12, 0.22, 1 / 16)
    for key, value in (("mamba_d_head", 32), ("position_embedding_type", "alibi")):
        with pytest.raises(CheckpointError, match=key):
            spec_of({**GRANITE_4_SMALL, key: value})
