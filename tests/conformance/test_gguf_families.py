"""GGUF files of every family, converted as public tools do, against `transformers` on the
checkpoint that they were made of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

import headrace
from fixtures.drive import Driver
from fixtures.gguf_files import matrices, write_gguf
from fixtures.tiny import CASES, VOCAB, Case, build
from headrace.device.cpu import CpuDevice
from headrace.models.load import load_model
from headrace.models.source import open_model
from headrace.ops.choose import ops_for

PROMPT = torch.randint(0, VOCAB, (37,), generator=torch.Generator().manual_seed(3)).tolist()
CLOSE = 1e-4  # of the largest logit
pytestmark = pytest.mark.timeout(600)

_YARN = CASES["qwen3_moe-yarn"].values["rope_parameters"]
# What GGUF has no key for stays as published: renormalised scores, limits, windows.
FIXED: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "mixtral-window": {"sliding_window": 7},
    "olmoe": {"num_experts_per_tok": 3},
    "qwen3_moe": {},
    "qwen3_moe-yarn": {},
    "gpt_oss": {"swiglu_limit": 7.0, "num_attention_heads": 4},
    "qwen3_5_moe": {},
    "glm4_moe": {},
    "deepseek_v2": {"rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
    "deepseek_v2-lite": {"n_group": 1, "topk_group": 1},
    "deepseek_v3": {
        "attention_bias": False,
        "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "glm4_moe_lite": {},
    "dots1": {"n_group": 1, "sliding_window": None},
    "minimax_m2": {},
    "qwen3_next": {"mlp_only_layers": []},
    "qwen2_moe": {"mlp_only_layers": []},
    "lfm2_moe": {"conv_bias": False, "tie_word_embeddings": True},
    "granitemoehybrid": {},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention"],
        "n_group": 1,
        "topk_group": 1,
    },
    "gemma4": {},
    "llama4": {
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "moe_layers": [1, 3],
        "interleave_moe_layer_step": 2,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}


@pytest.fixture(scope="module", params=FIXED)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name = request.param
    made = CASES[name if name in CASES else name.partition("-")[0]]
    folder = tmp_path_factory.mktemp("gguf") / name
    with pytest.MonkeyPatch.context() as patch:
        values = {**made.values, **FIXED[name]}
        patch.setitem(CASES, name, Case(made.model_type, values, made.seed, made.published))
        model = build(name, folder)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0]
    return folder, logits


def logits_of(path: Path) -> torch.Tensor:
    with CpuDevice(2, exact=True) as device:
        ops = ops_for(device)
        return Driver(load_model(open_model(path), ops), ops).step((0, PROMPT))[0]


def test_logits_are_those_of_the_published_checkpoint(case: Any) -> None:
    folder, expected = case
    write_gguf(folder, folder / "model.gguf")
    found = logits_of(folder / "model.gguf")
    assert (found - expected).abs().max() < CLOSE * expected.abs().max()


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_rounded_files_compute_with_the_values_they_hold(case: Any, kind: str) -> None:
    folder, _ = case
    stored = write_gguf(folder, folder / f"{kind}.gguf", matrices(gguf.GGMLQuantizationType[kind]))
    write_gguf(folder, folder / "same.gguf", instead=stored)
    expected = logits_of(folder / "same.gguf")
    found = logits_of(folder / f"{kind}.gguf")
    assert (found - expected).abs().max() < CLOSE * expected.abs().max()


def test_engines_give_the_same_tokens(case: Any) -> None:
    """Prompts cut in chunks, states, captured steps: what a whole engine does with it."""
    folder, _ = case
    write_gguf(folder, folder / "model.gguf")
    answers = []
    for path in (folder, folder / "model.gguf"):
        config = headrace.EngineConfig.of(dtype="float32", **{"schedule.step_tokens": 16})
        engine = headrace.load(path, config)
        try:
            sampling = headrace.Sampling(temperature=0, max_tokens=12, ignore_eos=True)
            answers.append(engine.generate(PROMPT, sampling))
        finally:
            engine.close()
    assert len(answers[0]) == 12
    assert answers[0] == answers[1]
