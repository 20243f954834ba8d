"""Configs of GLM-4.5, MiniMax-M2 and Qwen3-Next, as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.models.registry import family_of
from headrace.models.spec import (
    Attention,
    DeltaRule,
    Dense,
    ModelSpec,
    Moe,
    OutputGate,
    QkNorm,
    Rope,
    SharedExpert,
)
from headrace.ops.table import Score
from headrace.weights.checkpoint import SafetensorsCheckpoint

GLM45_AIR: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338],
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 10944,
    "max_position_embeddings": 131072,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_qk_norm": False,
    "vocab_size": 151552,
}
MINIMAX_M2: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "attention_dropout": 0.0,
    "attn_type_list": [1] * 62,
    "bos_token_id": None,
    "eos_token_id": None,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_beta": 1.0,
    "max_position_embeddings": 196608,
    "mlp_intermediate_size": 8192,
    "model_type": "minimax_m2",
    "mtp_transformer_layers": 1,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "num_mtp_modules": 3,
    "output_router_logits": False,
    "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,
    "rotary_dim": 64,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid",
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_mtp": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 200064,
}

QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return family_of(SafetensorsCheckpoint(Path("model"), config, {}))[1]


def test_glm4_moe() -> None:
    spec = spec_of(GLM45_AIR)
    assert [isinstance(layer.ffn, Dense) for layer in spec.layers] == [True] + [False] * 45
    assert spec.ahead == 1
    mixer, moe = spec.layers[1].mixer, spec.layers[1].ffn
    assert isinstance(mixer, Attention)
    assert isinstance(moe, Moe)
    assert mixer.rope == Rope(1e6, 64)
    assert (mixer.bias, mixer.out_bias, mixer.qk_norm) == (True, False, QkNorm.NONE)
    assert (moe.experts, moe.width, moe.shared) == (128, 1408, SharedExpert(1408, gated=False))
    router = moe.router
    assert (router.top_k, router.score, router.renorm_eps) == (8, Score.SIGMOID, 1e-20)
    assert moe.correction_bias
    with pytest.raises(CheckpointError, match=r"n_group = 3; expected a divisor of 128"):
        spec_of({**GLM45_AIR, "n_group": 3})
    with pytest.raises(CheckpointError, match="no more than the experts of the groups kept"):
        spec_of({**GLM45_AIR, "n_group": 32, "topk_group": 1})
    with pytest.raises(CheckpointError, match="scoring_func"):
        spec_of({**GLM45_AIR, "scoring_func": "softmax"})


def test_minimax_m2() -> None:
    spec = spec_of(MINIMAX_M2)
    mixer, moe = spec.layers[61].mixer, spec.layers[61].ffn
    assert isinstance(mixer, Attention)
    assert isinstance(moe, Moe)
    assert mixer.rope == Rope(5e6, 64)
    assert (mixer.qk_norm, mixer.bias) == (QkNorm.WHOLE, False)
    assert (moe.experts, moe.width, moe.shared) == (256, 1536, None)
    assert (moe.router.score, moe.router.renormalize, moe.router.renorm_eps) == (
        Score.SIGMOID,
        True,
        0.0,
    )
    with pytest.raises(CheckpointError, match="qk_norm_type"):
        spec_of({**MINIMAX_M2, "qk_norm_type": "per_head"})


def test_qwen3_next() -> None:
    spec = spec_of(QWEN3_NEXT)
    assert spec.norm_plus_one
    kinds = [isinstance(layer.mixer, DeltaRule) for layer in spec.layers]
    assert kinds == [True, True, True, False] * 12
    delta, attention, moe = spec.layers[0].mixer, spec.layers[3].mixer, spec.layers[0].ffn
    assert isinstance(delta, DeltaRule)
    assert isinstance(attention, Attention)
    assert isinstance(moe, Moe)
    assert (delta.qkvz_by_head, delta.ba_by_head, delta.tiled) == (True, True, False)
    assert (attention.gate, attention.rope) == (OutputGate.WITHIN_QUERY, Rope(1e7, 64))
    assert (moe.experts, moe.router.top_k, moe.router.renormalize) == (512, 10, True)
    assert moe.shared == SharedExpert(512, gated=True)
