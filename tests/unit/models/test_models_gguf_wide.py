"""Gemma 4 and Llama 4 from the keys of a GGUF file, and from the divisors it holds."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.models.registry import family_of
from headrace.models.spec import (
    Attention,
    Divided,
    Proportional,
    QkNorm,
    Temperature,
)
from headrace.weights.checkpoint import SafetensorsCheckpoint, StoredTensor
from headrace.weights.gguf_config import config_of


def attention_of(config: dict[str, Any], layer: int) -> Attention:
    mixer = family_of(SafetensorsCheckpoint(Path("m"), config, {}))[1].layers[layer].mixer
    assert isinstance(mixer, Attention)
    return mixer


def gguf_of(path: Path, divisors: list[float], **more: Any) -> dict[str, Any]:
    path.write_bytes(struct.pack(f"<{len(divisors)}f", *divisors))
    keys = {
        "block_count": 2,
        "context_length": 4096,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "expert_feed_forward_length": 24,
        "expert_count": 16,
        "expert_used_count": 4,
        "attention.head_count": 8,
        "attention.head_count_kv": [4, 2],
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 7,
        "attention.sliding_window_pattern": [True, False],
        "rope.freq_base": 1e6,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
    }
    keys |= {k.replace("__", "."): v for k, v in more.items()}
    made = {f"gemma4.{key}": value for key, value in keys.items()}
    metadata = {"general.architecture": "gemma4", "tokenizer.ggml.eos_token_id": 1, **made}
    shapes = {"token_embd.weight": (320, 64), "rope_freqs.weight": (16,)}
    tensors = {n: StoredTensor(n, "F32", shape, path, 0, 64) for n, shape in shapes.items()}
    return config_of(metadata, tensors, str(path))


def test_a_file_tells_how_much_of_wide_heads_turns(tmp_path: Path) -> None:
    config = gguf_of(tmp_path / "m", [1.0] * 3 + [1e30] * 13)
    far = attention_of(config, 1)
    assert far.rope is not None
    assert far.rope.scaling == Proportional(3)
    assert (far.kv_heads, far.values_of_keys) == (2, True)
    whole = attention_of(gguf_of(tmp_path / "m", [1.0] * 16), 1)
    assert whole.rope is not None
    assert whole.rope.scaling == Proportional(16)


@pytest.mark.parametrize(
    ("divisors", "more"),
    [
        ([1.0] * 3 + [2.0] * 2 + [1e30] * 11, {}),
        ([1.0] * 3, {}),
        ([2.0] * 8 + [1.0] * 8, {}),
        ([1.0] * 16, {"attention__key_length": 64}),
        ([1.0] * 16, {"attention__shared_kv_layers": 1}),
        ([1.0] * 16, {"attention__sliding_window_pattern": [True]}),
        ([1.0] * 16, {"attention__head_count_kv": [4, 0]}),
        ([1.0] * 16, {"expert_count": 0}),
    ],
)
def test_a_file_that_cannot_be_right(
    tmp_path: Path, divisors: list[float], more: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointError):
        gguf_of(tmp_path / "m", divisors, **more)


def llama4_gguf(path: Path, divisors: list[float], **more: Any) -> dict[str, Any]:
    path.write_bytes(struct.pack(f"<{len(divisors)}f", *divisors))
    keys = {
        "block_count": 4,
        "context_length": 4096,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "expert_feed_forward_length": 24,
        "expert_count": 16,
        "expert_used_count": 1,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.key_length": 8,
        "attention.value_length": 8,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "interleave_moe_layer_step": 1,
        "rope.freq_base": 5e5,
        "rope.dimension_count": 8,
    }
    keys |= {k.replace("__", "."): v for k, v in more.items()}
    made = {f"llama4.{key}": value for key, value in keys.items()}
    shapes = {"token_embd.weight": (320, 64), "rope_freqs.weight": (4,)}
    tensors = {n: StoredTensor(n, "F32", shape, path, 0, 16) for n, shape in shapes.items()}
    return config_of({"general.architecture": "llama4", **made}, tensors, str(path))


def test_a_llama_4_file(tmp_path: Path) -> None:
    spec = llama4_gguf(tmp_path / "m", [1.0, 1.5, 8.0, 8.0])
    near, far = attention_of(spec, 2), attention_of(spec, 3)
    assert near.rope is not None
    assert near.rope.scaling == Divided((1.0, 1.5, 8.0, 8.0))
    assert (near.window, near.qk_norm, far.rope) == (8192, QkNorm.UNIT, None)
    assert far.temperature == Temperature(8192, 0.1)
    largest = llama4_gguf(tmp_path / "m", [1.0] * 4, expert_count=128)
    assert attention_of(largest, 0).qk_norm == QkNorm.NONE


@pytest.mark.parametrize(
    ("divisors", "more"),
    [
        ([1.0] * 3, {}),
        ([1.0, 0.0, 1.0, 1.0], {}),
        ([1.0, float("nan"), 1.0, 1.0], {}),
        ([1.0] * 4, {"attention__key_length": 16}),
        ([1.0] * 4, {"attention__sliding_window": 0}),
        ([1.0] * 4, {"interleave_moe_layer_step": 0}),
    ],
)
def test_a_llama_4_file_that_cannot_be_right(
    tmp_path: Path, divisors: list[float], more: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointError):
        llama4_gguf(tmp_path / "m", divisors, **more)
