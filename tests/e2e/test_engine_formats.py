"""Quantised checkpoints give the logits of the values that they stand for, in every placement with
the same bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import quantised
import tiny
import torch
from engines import load

PROMPT = [3 + (i * 37 + i * i * 11) % 120 for i in range(29)]


@pytest.mark.parametrize("kind", quantised.CONFIG)
def test_logits_are_those_of_the_values(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "head_dim": 32, "num_hidden_layers": 2}
    case = tiny.CASES["qwen3_moe"]
    small = tiny.Case(case.model_type, {**case.values, **sizes, "num_attention_heads": 4})
    monkeypatch.setitem(tiny.CASES, "small", small)
    torch.manual_seed(5)
    model = tiny.build("small", tmp_path)
    quantised.quantise(tmp_path, kind, model)
    with torch.no_grad():
        truth = model(torch.tensor([PROMPT])).logits[0].numpy()
    alone = load(tmp_path)
    logits = alone.score(PROMPT)
    alone.close()
    assert np.square(logits - truth).sum() / np.square(truth).sum() < 1e-10
    keys = {"experts.placement": "hybrid", "experts.fill": "balanced", "experts.cache": "40%"}
    split = load(tmp_path, device="emulated", **{"emulated.memory": "64MiB"}, **keys)
    assert np.array_equal(split.score(PROMPT), logits)
    split.close()
    few = load(tmp_path, **{"experts.ram": "3 slots"})  # packed as the rows come from disk
    assert np.array_equal(few.score(PROMPT), logits)
    few.close()
