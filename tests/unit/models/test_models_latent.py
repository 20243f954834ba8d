"""Configs of families with latent attention, as published; and as GGUF files tell them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.models.needs import needs_of
from headrace.models.registry import family_of
from headrace.models.spec import Dense, LatentAttention, ModelSpec, Moe, Rope, SharedExpert, Yarn
from headrace.ops.table import Score
from headrace.weights.checkpoint import SafetensorsCheckpoint, StoredTensor
from headrace.weights.gguf_checkpoint import GgufCheckpoint
from headrace.weights.gguf_config import config_of

V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
V2_LITE: dict[str, Any] = {
    **{k: v for k, v in V3.items() if k not in ("num_nextn_predict_layers", "rope_scaling")},
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "rope_scaling": {**V3["rope_scaling"], "mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}
FLASH: dict[str, Any] = {
    **{k: v for k, v in V3.items() if k not in ("first_k_dense_replace", "rope_scaling")},
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "model_type": "glm4_moe_lite",
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 64,
    "num_attention_heads": 20,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 47,
    "num_key_value_heads": 20,
    "partial_rotary_factor": 1.0,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.8,
    "topk_group": 1,
    "v_head_dim": 256,
    "vocab_size": 154880,
}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return family_of(SafetensorsCheckpoint(Path("model"), config, {}))[1]


def parts(spec: ModelSpec, layer: int = -1) -> tuple[LatentAttention, Moe]:
    mixer, moe = spec.layers[layer].mixer, spec.layers[layer].ffn
    assert isinstance(mixer, LatentAttention)
    assert isinstance(moe, Moe)
    return mixer, moe


def test_deepseek_v3() -> None:
    spec = spec_of(V3)
    assert [isinstance(layer.ffn, Dense) for layer in spec.layers] == [True] * 3 + [False] * 58
    mixer, moe = parts(spec)
    stretch = 0.1 * math.log(40) + 1
    assert mixer.scale == pytest.approx(192**-0.5 * stretch**2)
    assert mixer.rope.scaling == Yarn(40.0, 4096, 32.0, 1.0, 1.0, truncate=True)
    assert (mixer.rope.rotated, mixer.rope.interleaved, mixer.width) == (64, True, 576)
    assert (mixer.eps, spec.eps) == (1e-6, 1e-6)
    router = moe.router
    assert (router.score, router.groups, router.keep_groups) == (Score.SIGMOID, 8, 4)
    assert (router.group_best, router.scale, moe.correction_bias) == (2, 2.5, True)
    needs = needs_of(spec)
    assert needs["layers.0.kv_b"] == (128 * 256, 512)
    assert needs["layers.0.q_b"] == (128 * 192, 1536)
    assert spec_of({**V3, "model_type": "kimi_k2"}) == spec
    wrapped = {"model_type": "kimi_k25", "text_config": {**V3, "model_type": "kimi_k2"}}
    assert spec_of(wrapped) == spec
    assert spec_of({**wrapped, "model_type": "another wrapper"}) == spec


def test_deepseek_v2_lite() -> None:
    spec = spec_of(V2_LITE)
    mixer, moe = parts(spec)
    assert (mixer.query_rank, mixer.heads, mixer.rank) == (0, 16, 512)
    assert mixer.scale == pytest.approx(192**-0.5 * (0.0707 * math.log(40) + 1) ** 2)
    assert (moe.shared, moe.correction_bias) == (SharedExpert(2816, gated=False), False)
    router = moe.router
    assert (router.score, router.groups, router.renormalize) == (Score.SOFTMAX, 1, False)
    assert needs_of(spec)["layers.0.q"] == (16 * 192, 2048)
    limited = {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}
    router = parts(spec_of({**V2_LITE, **limited}))[1].router
    assert (router.groups, router.keep_groups, router.group_best) == (8, 3, 1)


def test_glm_4_7_flash() -> None:
    spec = spec_of(FLASH)
    assert [isinstance(layer.ffn, Dense) for layer in spec.layers] == [True] + [False] * 46
    mixer, moe = parts(spec)
    assert mixer.rope == Rope(1e6, 64, interleaved=True)
    assert (mixer.key_dim, mixer.value_dim, mixer.scale) == (192, 256, 256**-0.5)
    assert (mixer.eps, spec.eps) == (1e-6, 1e-5)  # the latents' is fixed
    assert (moe.router.top_k, moe.router.scale) == (4, 1.8)


@pytest.mark.parametrize(
    ("config", "change", "named"),
    [
        (V3, {"num_key_value_heads": 8}, "num_key_value_heads = 8; expected 128"),
        (V3, {"scoring_func": "softmax"}, "scoring_func"),
        (V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob = True; expected false, as published"),
        (V2_LITE, {"topk_method": "noaux_tc"}, "topk_method"),
        (V2_LITE, {"scoring_func": "sigmoid"}, "scoring_func"),
        (FLASH, {"index_topk": 2048}, "index_topk = 2048 is not known here"),
        (V3, {"kv_lora_rank": None}, "kv_lora_rank"),
        (V3, {"qk_rope_head_dim": 63}, "even share of 63"),
    ],
)
def test_what_cannot_be_computed_is_named(
    config: dict[str, Any], change: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        spec_of({**config, **change})


GGUF = {
    "block_count": 61,
    "context_length": 163840,
    "embedding_length": 7168,
    "feed_forward_length": 18432,
    "attention.head_count": 128,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "attention.q_lora_rank": 1536,
    "attention.kv_lora_rank": 512,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "rope.dimension_count": 64,
    "rope.freq_base": 10000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096,
    "rope.scaling.yarn_log_multiplier": 0.10000000149011612,
    "leading_dense_block_count": 3,
    "expert_count": 256,
    "expert_used_count": 8,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 2048,
    "expert_group_count": 8,
    "expert_group_used_count": 4,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    "vocab_size": 320,
}


def told(names: tuple[str, ...], **changes: Any) -> ModelSpec:
    keys = GGUF | {k.replace("__", "."): v for k, v in changes.items()}
    metadata: dict[str, Any] = {"general.architecture": "deepseek2"}
    metadata |= {f"deepseek2.{key}": value for key, value in keys.items() if value is not None}
    shapes = {"token_embd.weight": (320, 7168)} | dict.fromkeys((*names, "output.weight"), (8,))
    tensors = {n: StoredTensor(n, "F32", s, Path("m.gguf"), 0, 4) for n, s in shapes.items()}
    config = config_of(metadata, tensors, "m.gguf")
    return family_of(GgufCheckpoint(Path("m.gguf"), config, tensors, metadata))[1]


APART = ("blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight")


def test_gguf() -> None:
    expected = parts(spec_of(V3))
    mixer, moe = parts(told(APART))
    assert mixer.split
    assert (mixer.scale, mixer.rope, mixer.width) == (
        pytest.approx(expected[0].scale),
        expected[0].rope,
        576,
    )
    assert (mixer.key_dim, mixer.value_dim, mixer.heads) == (128, 128, 128)
    assert moe == expected[1]
    needs = needs_of(told(APART))
    assert (needs["layers.0.k_b"], needs["layers.0.v_b"]) == ((128 * 512, 128), (128 * 128, 512))
    # Files made before the halves were stored apart tell the widths of a head.
    older = {
        "attention__key_length": 192,
        "attention__value_length": 128,
        "attention__key_length_mla": None,
        "attention__value_length_mla": None,
        "attention__head_count_kv": 128,
    }
    mixer, moe = parts(told(("blk.0.attn_kv_b.weight",), **older))
    assert (mixer.split, mixer.key_dim, mixer.value_dim) == (False, 128, 128)


def test_gguf_of_softmax_scores() -> None:
    plain = {"expert_gating_func": None, "expert_weights_norm": None}
    moe = parts(told(APART, **plain))[1]
    assert (moe.router.score, moe.router.group_best) == (Score.SOFTMAX, 1)
    # A bias for the choice is of sigmoid scores, where nothing tells.
    moe = parts(told((*APART, "blk.3.exp_probs_b.bias"), **plain))[1]
    assert (moe.router.score, moe.router.group_best) == (Score.SIGMOID, 2)
    with pytest.raises(CheckpointError, match=r"key_length_mla = 64; expected more than the 64"):
        told(APART, attention__key_length_mla=64)
    with pytest.raises(CheckpointError, match="expert_gating_func = 7"):
        told(APART, expert_gating_func=7)
