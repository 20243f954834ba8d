"""Hyper-parameters of GGUF files become specs; what cannot be right is named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CheckpointError
from headrace.models.registry import family_of
from headrace.models.spec import Attention, DeltaRule, ModelSpec, Moe, OutputGate, Yarn
from headrace.weights.checkpoint import StoredTensor
from headrace.weights.gguf_checkpoint import GgufCheckpoint
from headrace.weights.gguf_config import config_of, layers_of

FILE = "m.gguf"
COMMON = {
    "block_count": 4,
    "context_length": 4096,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 9.999999974752427e-07,  # 1e-6 in float32
    "rope.freq_base": 1e6,
    "expert_count": 16,
    "expert_used_count": 4,
    "vocab_size": 320,
}
QWEN35 = {
    "attention.key_length": 16,
    "attention.value_length": 16,
    "rope.dimension_count": 4,
    "rope.dimension_sections": [1, 1, 0, 0],
    "expert_feed_forward_length": 24,
    "expert_shared_feed_forward_length": 40,
    "full_attention_interval": 2,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 9,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 6,
    "ssm.inner_size": 66,
    "nextn_predict_layers": 0,
}
OSS = {
    "attention.key_length": 8,
    "expert_feed_forward_length": 32,
    "attention.sliding_window": 128,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 32.0,
    "rope.scaling.original_context_length": 128,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"attention.head_count_kv": 4},
    "qwen3moe": {"expert_feed_forward_length": 24, "attention.key_length": 16,
                 "attention.value_length": 16},
    "olmoe": {"attention.clamp_kqv": 8.0},
    "gpt-oss": OSS,
    "qwen35moe": QWEN35,
}  # fmt: skip


def metadata_of(arch: str, **more: Any) -> dict[str, Any]:
    keys = {**COMMON, **ARCHITECTURES[arch], **{k.replace("__", "."): v for k, v in more.items()}}
    made: dict[str, Any] = {f"{arch}.{key}": value for key, value in keys.items()}
    return {"general.architecture": arch, "tokenizer.ggml.eos_token_id": 2} | made


def tensors_of(*names: str, vocab: int = 320) -> dict[str, StoredTensor]:
    shapes = {"token_embd.weight": (vocab, 64)} | dict.fromkeys(names, (8,))
    return {n: StoredTensor(n, "F32", shape, Path(FILE), 0, 4) for n, shape in shapes.items()}


def spec_of(metadata: dict[str, Any], tensors: dict[str, StoredTensor]) -> ModelSpec:
    config = config_of(metadata, tensors, FILE)
    return family_of(GgufCheckpoint(Path(FILE), config, tensors, metadata))[1]


def test_numbers_all_models_have() -> None:
    spec = spec_of(metadata_of("qwen3moe"), tensors_of("output.weight"))
    assert (spec.hidden, spec.vocab, spec.max_context, len(spec.layers)) == (64, 320, 4096, 4)
    assert (spec.eps, spec.tied, spec.norm_plus_one) == (1e-6, False, False)
    assert spec_of(metadata_of("qwen3moe"), tensors_of()).tied
    mixer, moe = spec.layers[0].mixer, spec.layers[0].ffn
    assert isinstance(mixer, Attention)
    assert isinstance(moe, Moe)
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.bias) == (8, 2, 16, False)
    assert mixer.rope is not None
    assert (mixer.rope.theta, mixer.rope.interleaved, mixer.rope.scaling) == (1e6, False, None)
    assert (moe.experts, moe.width, moe.router.top_k) == (16, 24, 4)
    assert moe.router.renormalize


def test_what_each_family_adds() -> None:
    mixtral = spec_of(metadata_of("llama", attention__sliding_window=77), tensors_of())
    mixer = mixtral.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    assert (mixtral.family, mixer.window, mixer.rope.interleaved) == ("mixtral", 77, True)
    olmoe = spec_of(metadata_of("olmoe"), tensors_of())
    assert isinstance(olmoe.layers[0].mixer, Attention)
    assert isinstance(olmoe.layers[0].ffn, Moe)
    assert olmoe.layers[0].mixer.clip == 8.0
    assert (olmoe.layers[0].ffn.width, olmoe.layers[0].ffn.router.renormalize) == (96, False)
    oss = spec_of(metadata_of("gpt-oss"), tensors_of("blk.0.attn_q.bias"))
    mixers = [layer.mixer for layer in oss.layers]
    assert [m.window for m in mixers if isinstance(m, Attention)] == [128, 0, 128, 0]
    assert isinstance(mixers[0], Attention)
    assert mixers[0].rope is not None
    scaling = mixers[0].rope.scaling
    assert isinstance(scaling, Yarn)
    assert (scaling.factor, scaling.original_context, scaling.truncate) == (32.0, 128, False)
    assert scaling.attention_factor == pytest.approx(0.1 * math.log(32) + 1)
    assert mixers[0].bias


def test_qwen35() -> None:
    spec = spec_of(metadata_of("qwen35moe"), tensors_of())
    kinds = [type(layer.mixer) for layer in spec.layers]
    assert kinds == [DeltaRule, Attention, DeltaRule, Attention]
    delta, attention = spec.layers[0].mixer, spec.layers[1].mixer
    expected = DeltaRule(
        key_heads=2, value_heads=6, key_dim=9, value_dim=11, kernel=4, tiled=True, rate=True
    )
    assert delta == expected
    assert isinstance(attention, Attention)
    assert attention.rope is not None
    assert (attention.rope.rotated, attention.gate) == (4, OutputGate.WITHIN_QUERY)
    assert not spec.norm_plus_one


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    told = metadata_of("qwen35moe", nextn_predict_layers=1)
    assert layers_of(told, FILE) == 3
    assert len(spec_of(told, tensors_of()).layers) == 3


@pytest.mark.parametrize("rotated", range(2, 129, 2))
def test_every_share_of_a_head_comes_back_whole(rotated: int) -> None:
    width = 128
    told = metadata_of(
        "qwen3moe", attention__key_length=width, attention__value_length=width,
        rope__dimension_count=rotated,
    )  # fmt: skip
    mixer = spec_of(told, tensors_of()).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    assert mixer.rope.rotated == rotated


def test_tokens_that_end_an_answer() -> None:
    told = metadata_of("qwen3moe") | {
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_end|>", "x", "<|call|>", ["</s>"]],
        "tokenizer.ggml.token_type": [3, 3, 1, 1, 3],
    }
    assert config_of(told, tensors_of(), FILE)["eos_token_id"] == [0, 1, 2, 7]


@pytest.mark.parametrize(
    ("arch", "change", "said"),
    [
        ("qwen3moe", {"block_count": 0}, "qwen3moe.block_count = 0"),
        ("qwen3moe", {"block_count": "4"}, "qwen3moe.block_count = '4'"),
        ("qwen3moe", {"attention__head_count": [8, 4, 8, 8]}, "attention.head_count"),
        ("qwen3moe", {"attention__value_length": 8}, "attention.value_length = 8"),
        ("qwen3moe", {"expert_count": [[8]]}, "expert_count = [[8]]"),
        ("qwen3moe", {"attention__logit_softcapping": 30.0}, "logit_softcapping = 30.0 is not"),
        ("qwen3moe", {"rope__scaling__type": "longrope"}, "rope.scaling.type = 'longrope'"),
        ("qwen3moe", {"rope__freq_base": math.nan}, "rope.freq_base"),
        ("llama", {"expert_count": 0}, "expert_count = 0"),
        ("llama", {"expert_count": None}, "Mixture-of-Experts"),
        ("qwen35moe", {"nextn_predict_layers": 4}, "nextn_predict_layers"),
        ("qwen3moe", {"block_count": 1 << 39}, "at most 4096 layers"),
        ("qwen35moe", {"ssm__inner_size": 65}, "ssm.inner_size"),
        ("gpt-oss", {"rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor"),
    ],
)
def test_what_is_wrong_is_named(arch: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_of(metadata_of(arch, **change), tensors_of())
    assert said in str(caught.value)
    assert FILE in str(caught.value)


def test_an_architecture_that_is_not_served_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"'whale \(GGUF\)' is not.*deepseek2, dots1, "):
        spec_of({"general.architecture": "whale"}, {})
    with pytest.raises(CheckpointError, match="token_embd"):
        spec_of(metadata_of("qwen3moe"), {})


STRANGE = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.integers(-5, 300), st.floats(),
    st.sampled_from([0, -1, 1 << 31, 1 << 62, 1 << 64, 1e300]),
    st.lists(st.one_of(st.integers(-2, 9), st.text(max_size=2), st.floats()), max_size=5),
)  # fmt: skip


@given(arch=st.sampled_from(list(ARCHITECTURES)), data=st.data())
@settings(max_examples=300)
def test_any_value_gives_a_spec_or_an_error_of_ours(arch: str, data: st.DataObject) -> None:
    told = metadata_of(arch)
    for _ in range(data.draw(st.integers(1, 3))):
        told[data.draw(st.sampled_from(sorted(told)))] = data.draw(STRANGE)
    try:
        layers_of(told, FILE)
        spec_of(told, tensors_of("output.weight", "blk.0.attn_q.bias"))
    except CheckpointError:
        return
