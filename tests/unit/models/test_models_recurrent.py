"""Configs of LFM2-MoE, as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.models.registry import family_of
from headrace.models.spec import Attention, Dense, ModelSpec, Moe, QkNorm, Rope, ShortConv
from headrace.ops.table import Score
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
