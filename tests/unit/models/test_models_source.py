"""What is known of a model before its weights are read, and what is refused then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures.tiny import VOCAB, build
from headrace.errors import CheckpointError
from headrace.models.source import open_model
from headrace.planning.facts import KvNeed, RecurrentNeed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for name in ("qwen3_5_moe-wrapped", "gpt_oss", "mixtral", "qwen3_moe-dense-tied-linear"):
        build(name, path / name, dtype=torch.bfloat16)
    return path


def test_facts_of_a_hybrid(folder: Path) -> None:
    facts = open_model(folder / "qwen3_5_moe-wrapped").facts
    assert (facts.family, facts.layers, facts.hidden, facts.vocab) == ("qwen3_5_moe", 4, 44, VOCAB)
    assert facts.state == (*[RecurrentNeed((6, 9, 11), (102, 3))] * 3, KvNeed(32, 32, None, 2))
    assert facts.experts == (7,) * 4
    assert facts.top_k == (3,) * 4
    assert facts.expert_bytes == (3 * 19 * 44 * 2,) * 4
    assert facts.dtype == "bfloat16"
    assert facts.kv_bytes_per_token(2) == 128
    assert facts.state_bytes_per_sequence() == 3 * 4 * (6 * 9 * 11 + 102 * 3)
    stored = load_file(folder / "qwen3_5_moe-wrapped" / "model.safetensors")
    read = {n: t for n, t in stored.items() if not n.startswith(("mtp.", "model.visual."))}
    assert len(read) == len(stored) - 2
    assert facts.total_bytes == sum(t.numel() * t.element_size() for t in read.values())


def test_facts_count_windows_biases_and_dense_layers(folder: Path) -> None:
    facts = open_model(folder / "gpt_oss").facts
    assert [need.window for need in facts.state if isinstance(need, KvNeed)] == [7, None, 7]
    # Biases are held in float32, whatever the file has.
    assert facts.expert_bytes[0] == 3 * 37 * 44 * 2 + (2 * 37 + 44) * 4
    dense = open_model(folder / "qwen3_moe-dense-tied-linear").facts
    assert dense.experts == (7, 0, 7)
    assert dense.expert_bytes[1] == 0
    assert dense.top_k[1] == 0


def damaged(folder: Path, path: Path, **change: Any) -> Path:
    """A copy of the Mixtral folder with tensors replaced (None = dropped) by their layer-0 leaf
    names.
    """
    tensors = load_file(folder / "mixtral" / "model.safetensors")
    for leaf, value in change.items():
        (name,) = [n for n in tensors if n.endswith(leaf.replace("__", "."))]
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text((folder / "mixtral" / "config.json").read_text())
    return path


def test_a_missing_tensor(folder: Path, tmp_path: Path) -> None:
    path = damaged(folder, tmp_path, layers__1__input_layernorm__weight=None)
    with pytest.raises(CheckpointError, match=r"missing: layers\.1\.mixer_norm.*download"):
        open_model(path)


def test_a_wrong_shape(folder: Path, tmp_path: Path) -> None:
    path = damaged(folder, tmp_path, lm_head__weight=torch.zeros(VOCAB + 1, 44))
    with pytest.raises(
        CheckpointError, match=r"'lm_head.weight' has shape \[132, 44\].*\[131, 44\]"
    ):
        open_model(path)


def test_a_wrong_dtype(folder: Path, tmp_path: Path) -> None:
    path = damaged(folder, tmp_path, lm_head__weight=torch.zeros(VOCAB, 44, dtype=torch.float64))
    with pytest.raises(CheckpointError, match=r"'lm_head.weight' has dtype F64.*F32, BF16, F16"):
        open_model(path)


def test_an_unknown_architecture(folder: Path, tmp_path: Path) -> None:
    path = damaged(folder, tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "model_type": "gpt9"}))
    with pytest.raises(CheckpointError, match=r"'gpt9' is not supported; expected one of .*dots1"):
        open_model(path)


def test_what_is_not_served_need_not_be_downloaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt9"}))
    with pytest.raises(CheckpointError, match="'gpt9' is not supported"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral"}))
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        open_model(tmp_path)


def test_a_config_of_another_size(folder: Path, tmp_path: Path) -> None:
    path = damaged(folder, tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_local_experts": 4}))
    with pytest.raises(CheckpointError, match="config and weights belong together"):
        open_model(path)


def test_a_truncated_file(folder: Path, tmp_path: Path) -> None:
    path = damaged(folder, tmp_path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=r"is truncated.*download this file again"):
        open_model(path)
