"""Latent attention behind the engine: halves of kv_b in quantised formats, our own folders, and
what a token costs in the plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ftw_folders
import gguf
import gguf_files
import numpy as np
import pytest
import quantised
import tiny
import torch
from engines import load

from headrace.models.source import open_model
from headrace.planning.facts import KvNeed

PROMPT = [3 + (i * 37 + i * i * 11) % 120 for i in range(29)]
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 32,
    "attention_bias": False,
}
ODD = {"qk_nope_head_dim": 20, "v_head_dim": 12}  # tiles of eight rows reach over heads


def build(path: Path, **changes: object) -> Any:
    case = tiny.CASES["deepseek_v3"]
    values = {**case.values, **SIZES, **changes}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.CASES, "changed", tiny.Case(case.model_type, values, case.seed))
        return tiny.build("changed", path)


def score(path: Path, **keys: object) -> np.ndarray:
    engine = load(path, **keys)
    try:
        return engine.score(PROMPT)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("kind", "changes"), [("fp8", {}), ("fp8", ODD), ("fp8-channel", ODD), ("nvfp4", {})]
)
def test_quantised_halves(kind: str, changes: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = build(tmp_path / "stored", **changes)
    quantised.quantise(tmp_path / "stored", kind, model)
    with torch.no_grad():
        truth = model(torch.tensor([PROMPT])).logits[0].numpy()
    found = score(tmp_path / "stored")
    assert np.square(found - truth).sum() / np.square(truth).sum() < 1e-10
    made = ftw_folders.converted(tmp_path / "stored", tmp_path / "made")
    assert np.array_equal(score(made), found)
    keys = {"experts.placement": "hybrid", "experts.fill": "balanced", "experts.cache": "40%"}
    emulated = score(made, device="emulated", **{"emulated.memory": "64MiB"}, **keys)
    assert np.array_equal(emulated, found)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
def test_folders_of_halves_stored_apart(kind: str, tmp_path: Path) -> None:
    build(tmp_path / "source")
    kinds = gguf_files.matrices(gguf.GGMLQuantizationType[kind])
    stored = gguf_files.write_gguf(tmp_path / "source", tmp_path / "q.gguf", kinds)
    gguf_files.write_gguf(tmp_path / "source", tmp_path / "same.gguf", instead=stored)
    found = score(tmp_path / "q.gguf")
    truth = score(tmp_path / "same.gguf")
    assert np.abs(found - truth).max() < 1e-4 * np.abs(truth).max()
    made = ftw_folders.converted(tmp_path / "q.gguf", tmp_path / "made")
    assert np.array_equal(score(made), found)


def test_a_token_costs_its_latents(tmp_path: Path) -> None:
    build(tmp_path)
    facts = open_model(tmp_path).facts
    assert facts.state == (KvNeed(72, 0, latent=64, work=2 * 4 * (72 + 64)),) * 3
    assert facts.kv_bytes_per_token(2) == 3 * 72 * 2
    block = facts.kv_bytes_per_token(4) * 4
    engine = load(tmp_path, **{"memory.kv_bytes": str(100 * block)})
    try:
        assert engine.status()["kv_blocks_total"] == 100
    finally:
        engine.close()
