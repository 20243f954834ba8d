"""Quantised GGUF files compute with the values that the `gguf` package decodes from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from fixtures.drive import Driver
from fixtures.gguf_files import Kinds, matrices, write_gguf
from fixtures.tiny import CASES, Case, build
from headrace.device.cpu import CpuDevice
from headrace.formats.format import GGML
from headrace.models.load import load_model
from headrace.models.source import open_model
from headrace.ops.choose import ops_for

QUANTISED = sorted(form.tag for form in GGML)
PROMPT = torch.randint(0, 64, (23,), generator=torch.Generator().manual_seed(3)).tolist()
CLOSE = 1e-4  # of the largest logit
pytestmark = pytest.mark.timeout(600)

# Widths are whole blocks of 256 where a type needs it; the smallest that are.
WIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": (
        "qwen3_moe",
        {"hidden_size": 256, "moe_intermediate_size": 256, "num_attention_heads": 4,
         "head_dim": 64, "num_experts": 4, "vocab_size": 64, "num_hidden_layers": 2},
    ),
    "gpt_oss": (
        "gpt_oss",
        {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16,
         "vocab_size": 64, "num_hidden_layers": 2, "swiglu_limit": 7.0},
    ),
    "qwen3_5_moe": (
        "qwen3_5_moe",
        {"hidden_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
         "linear_value_head_dim": 32, "vocab_size": 64, "head_dim": 16, "num_attention_heads": 4},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made: dict[str, Path] = {}
    for name, (case, changes) in WIDE.items():
        old = CASES[case]
        made[name] = tmp_path_factory.mktemp("quantised") / name
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(CASES, name, Case(old.model_type, {**old.values, **changes}, old.seed))
            build(name, made[name])
    return made


def logits_of(path: Path) -> torch.Tensor:
    with CpuDevice(2, exact=True) as device:
        ops = ops_for(device)
        return Driver(load_model(open_model(path), ops), ops).step((0, PROMPT))[0]


def check(folder: Path, kinds: Kinds, tmp_path: Path) -> None:
    stored = write_gguf(folder, tmp_path / "q.gguf", kinds)
    write_gguf(folder, tmp_path / "same.gguf", instead=stored)
    expected, found = logits_of(tmp_path / "same.gguf"), logits_of(tmp_path / "q.gguf")
    assert expected.isfinite().all()
    assert (found - expected).abs().max() < CLOSE * expected.abs().max()
    plain, packed = (open_model(tmp_path / f"{name}.gguf").facts for name in ("same", "q"))
    # Work depends on how many weights there are, not on their bytes.
    assert packed.active_weights == plain.active_weights == plain.decode_bytes // 4
    assert packed.stem_weights == plain.stem_weights
    assert packed.decode_bytes < 0.6 * plain.decode_bytes


@pytest.mark.parametrize("kind", QUANTISED)
def test_all_matrices_of_one_type(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    check(folders["qwen3_moe"], matrices(gguf.GGMLQuantizationType[kind]), tmp_path)


def test_types_are_mixed_in_a_layer(folders: dict[str, Path], tmp_path: Path) -> None:
    """As the medium mixes do: values, down projections and the head in more bits."""
    few = matrices(gguf.GGMLQuantizationType.Q4_K)

    def kinds(name: str, values: Any) -> gguf.GGMLQuantizationType:
        chosen = few(name, values)
        more = any(part in name for part in ("attn_v", "ffn_down", "token_embd", "output.weight"))
        quantised = chosen == gguf.GGMLQuantizationType.Q4_K
        return gguf.GGMLQuantizationType.Q6_K if more and quantised else chosen

    check(folders["qwen3_moe"], kinds, tmp_path)


def test_mxfp4_experts_with_biases(folders: dict[str, Path], tmp_path: Path) -> None:
    rest = matrices(gguf.GGMLQuantizationType.Q8_0)

    def kinds(name: str, values: Any) -> gguf.GGMLQuantizationType:
        experts = name.endswith("_exps.weight")
        return gguf.GGMLQuantizationType.MXFP4 if experts else rest(name, values)

    check(folders["gpt_oss"], kinds, tmp_path)


def test_recurrent_layers(folders: dict[str, Path], tmp_path: Path) -> None:
    check(folders["qwen3_5_moe"], matrices(gguf.GGMLQuantizationType.Q8_0), tmp_path)
