"""Frequencies against transformers' own, and tables that never change once made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import MixtralConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from headrace.models.fields import Fields, read_rope
from headrace.models.rope import angle_factor, frequencies

TABLES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
        "truncate": False,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 0.9,
    },
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("head_dim", [10, 64, 128])
def test_scalings_equal_transformers(table: dict[str, Any], head_dim: int) -> None:
    table = {**table, "rope_theta": 50_000.0}
    config = MixtralConfig(
        head_dim=head_dim, max_position_embeddings=4096, rope_parameters=dict(table)
    )
    expected, factor = ROPE_INIT_FUNCTIONS[table["rope_type"]](config, "cpu")
    fields = Fields({"max_position_embeddings": 4096, "rope_parameters": table}, "test")
    rope = read_rope(fields, head_dim, theta=1.0)
    torch.testing.assert_close(frequencies(rope), expected, rtol=1e-5, atol=0)
    assert angle_factor(rope) == pytest.approx(factor)
