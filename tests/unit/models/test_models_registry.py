"""Configs as published become the right specs; anything not understood is refused by name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.models.registry import FAMILIES, family_of
from headrace.models.spec import (
    Attention,
    DeltaRule,
    Dense,
    LinearScaling,
    Llama3Scaling,
    ModelSpec,
    Moe,
    QkNorm,
    Rope,
    SharedExpert,
    Yarn,
)
from headrace.ops.table import Activation, Score
from headrace.weights.checkpoint import GGUF, SafetensorsCheckpoint

# The keys and values that the published config.json files have (dimensions from the models' cards).
QWEN3_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "vocab_size": 201088,
}
QWEN35: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "image_token_id": 248056,
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "vision_config": {"depth": 27},
    "text_config": {
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": 512,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 16,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 512,
        "vocab_size": 248320,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
    },
}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return family_of(SafetensorsCheckpoint(Path("model"), config, {}))[1]


def test_qwen3_moe() -> None:
    spec = spec_of(QWEN3_30B)
    assert (spec.hidden, spec.vocab, len(spec.layers), spec.eps) == (2048, 151936, 48, 1e-6)
    mixer, moe = spec.layers[7].mixer, spec.layers[7].ffn
    assert isinstance(mixer, Attention)
    assert isinstance(moe, Moe)
    assert mixer.rope == Rope(1e6, 128)
    assert (mixer.window, mixer.qk_norm, mixer.bias) == (0, QkNorm.HEAD, False)
    assert (moe.experts, moe.width, moe.router.top_k) == (128, 768, 8)
    assert moe.router.renormalize
    sparse = spec_of({**QWEN3_30B, "decoder_sparse_step": 2, "mlp_only_layers": [3]})
    kinds = [isinstance(layer.ffn, Dense) for layer in sparse.layers[:6]]
    assert kinds == [True, False, True, True, True, False]


def test_mixtral() -> None:
    mixer = spec_of({**MIXTRAL, "sliding_window": 4096}).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.head_dim, mixer.kv_heads, mixer.window) == (128, 8, 4096)


def test_gpt_oss() -> None:
    spec = spec_of(GPT_OSS)
    windows = [layer.mixer.window for layer in spec.layers if isinstance(layer.mixer, Attention)]
    assert windows == [128, 0] * 12
    mixer, moe = spec.layers[0].mixer, spec.layers[0].ffn
    assert isinstance(mixer, Attention)
    assert isinstance(moe, Moe)
    assert isinstance(mixer.rope, Rope)
    scaling = mixer.rope.scaling
    assert isinstance(scaling, Yarn)
    assert scaling.attention_factor == pytest.approx(1.34657359)  # 0.1 ln 32 + 1
    assert not scaling.truncate
    assert (moe.router.score, moe.activation) == (
        Score.SOFTMAX_OF_TOP_K,
        Activation.CLAMPED_SIGMOID,
    )


def test_qwen3_5_moe_in_its_wrapper_and_alone() -> None:
    spec = spec_of(QWEN35)
    assert spec == spec_of(QWEN35["text_config"])
    assert spec.norm_plus_one
    assert [isinstance(layer.mixer, DeltaRule) for layer in spec.layers] == [True] * 3 + [False] + (
        [True] * 3 + [False]
    ) * 9
    delta, mixer, moe = spec.layers[0].mixer, spec.layers[3].mixer, spec.layers[0].ffn
    assert isinstance(delta, DeltaRule)
    assert isinstance(mixer, Attention)
    assert isinstance(moe, Moe)
    assert delta.channels == 8192
    assert mixer.rope == Rope(1e7, 64)
    assert moe.shared == SharedExpert(512, gated=True)


def test_scalings() -> None:
    def scaling(**table: Any) -> object:
        mixer = spec_of({**QWEN3_30B, "rope_scaling": table}).layers[0].mixer
        assert isinstance(mixer, Attention)
        assert mixer.rope
        return mixer.rope.scaling

    assert scaling(type="linear", factor=2.0) == LinearScaling(2.0)
    assert scaling(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    ) == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    yarn = scaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)
    assert isinstance(yarn, Yarn)
    assert (yarn.beta_fast, yarn.beta_slow, yarn.truncate) == (32, 1, True)


def text(**change: Any) -> dict[str, Any]:
    return {**QWEN35, "text_config": {**QWEN35["text_config"], **change}}


BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "an activation that is no word": ({**MIXTRAL, "hidden_act": ["silu"]}, ["hidden_act"]),
    "a context beyond all": (
        {**MIXTRAL, "max_position_embeddings": 10**9},
        ["max_position_embeddings = 1000000000", "16777216"],
    ),
    "unknown": ({"model_type": "mamba9"}, ("'mamba9' is not supported", "mixtral, nemotron_h")),
    "unnamed": ({"architectures": ["FooLM"]}, ("model_type = None is not supported",)),
    "not a word": ({"model_type": ["mixtral"]}, ("is not supported",)),
    "new flag": ({**MIXTRAL, "use_logit_softcap": 30.0}, ("use_logit_softcap = 30.0",)),
    "new flag in the text part": (text(use_sandwich=True), ("use_sandwich = True",)),
    "new flag in rope": (
        {**MIXTRAL, "rope_parameters": {"rope_theta": 1e6, "warp": 2}},
        ("warp = 2", "rope_parameters"),
    ),
    "longrope": (
        {**MIXTRAL, "rope_scaling": {"type": "longrope"}},
        ("rope_scaling: type = 'longrope'", "default, linear, llama3, yarn"),
    ),
    "activation": ({**MIXTRAL, "hidden_act": "relu2"}, ("hidden_act = 'relu2'", "silu")),
    "missing size": (
        {k: v for k, v in MIXTRAL.items() if k != "hidden_size"},
        ("hidden_size = None", "a whole number"),
    ),
    "zero layers": ({**MIXTRAL, "num_hidden_layers": 0}, ("num_hidden_layers = 0",)),
    "absurd": ({**MIXTRAL, "vocab_size": 10**20}, ("vocab_size",)),
    "absurd layers": ({**MIXTRAL, "num_hidden_layers": 10**9}, ("num_hidden_layers", "4096")),
    "absurd experts": ({**MIXTRAL, "num_local_experts": 10**9}, ("num_local_experts", "65536")),
    "word in yarn": (
        {**MIXTRAL, "rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": "big"}},
        ("attention_factor = 'big'",),
    ),
    "word for number": ({**MIXTRAL, "num_attention_heads": "32"}, ("num_attention_heads = '32'",)),
    "true for number": ({**MIXTRAL, "num_attention_heads": True}, ("num_attention_heads",)),
    "nan": ({**MIXTRAL, "rms_norm_eps": float("nan")}, ("rms_norm_eps = nan",)),
    "too many chosen": ({**MIXTRAL, "num_experts_per_tok": 9}, ("num_experts_per_tok", "8")),
    "heads": ({**MIXTRAL, "num_key_value_heads": 5}, ("num_key_value_heads = 5", "32")),
    "layer kinds": (
        {**GPT_OSS, "layer_types": ["full_attention"] * 3},
        ("layer_types", "24 of sliding_attention, full_attention"),
    ),
    "odd rotation": (
        text(rope_parameters={"rope_theta": 1e7, "partial_rotary_factor": 0.02}),
        ("partial_rotary_factor",),
    ),
    "no gate": (text(attn_output_gate=False), ("attn_output_gate = False",)),
    "two top-k": ({**GPT_OSS, "experts_per_token": 6}, ("experts_per_token = 6",)),
    "value heads": (
        text(linear_num_value_heads=20),
        ("linear_num_key_heads = 16", "divisor of 20"),
    ),
    "table for text": ({"model_type": "qwen3_5_moe", "text_config": {}}, ("= None",)),
    "sparse step": ({**QWEN3_30B, "mlp_only_layers": "all"}, ("mlp_only_layers",)),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case: str) -> None:
    config, words = BAD[case]
    with pytest.raises(CheckpointError) as caught:
        spec_of(config)
    for word in (*words, "config.json", "expected"):
        assert word in str(caught.value)


def test_every_family_is_refused_by_name_when_its_config_is_empty() -> None:
    for word in FAMILIES:
        with pytest.raises(CheckpointError):
            spec_of({"model_type": word})


def test_the_table_of_families_is_the_registry() -> None:
    """README's rows name every family, and say which are served from safetensors alone."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|[^|]*\| (.*)\|$", text, re.MULTILINE)
    told = {word: note for names, note in rows for word in re.findall(r"\w+", names)}
    words = {word.removesuffix("_text") for word in FAMILIES}
    assert told.keys() == words
    packed = {
        word.removesuffix("_text") for word, family in FAMILIES.items() if GGUF in family.names
    }
    # A GGUF file of this one names DeepSeek-V2 or V3 as its architecture.
    packed.add("glm4_moe_lite")
    assert {word for word, note in told.items() if "from safetensors" not in note} == packed


def test_a_checkpoint_is_opened_and_its_read_started_without_torch(tmp_path: Path) -> None:
    """Start-up: the disk works while torch is imported."""
    code = (
        "import sys, headrace.engine.opening\n"
        "assert 'torch' not in sys.modules, sorted(m for m in sys.modules if 'headrace' in m)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
