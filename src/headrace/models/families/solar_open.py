"""Solar Open: plain grouped-query attention, balanced sigmoid routing in every layer."""

from __future__ import annotations

from headrace.models.families.balanced import feed_forward_of, moe_of
from headrace.models.families.common import (
    attention_of,
    head_dim_of,
    model_of,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    rope = read_rope(fields, head_dim_of(fields), theta=1_000_000.0)
    mixer = attention_of(fields, rope=rope, out_bias=False)
    blocks = feed_forward_of(fields, moe_of(fields))
    return model_of(fields, "solar_open", (LayerSpec(mixer, block) for block in blocks))
