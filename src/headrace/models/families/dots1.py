"""dots.llm1: a norm per q and k head, balanced sigmoid routing, windows in later layers if any."""

from __future__ import annotations

from headrace.models.families.balanced import feed_forward_of, moe_of
from headrace.models.families.common import (
    attention_of,
    head_dim_of,
    layers_of,
    model_of,
    windowed_layers,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, QkNorm


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    count = layers_of(fields)
    window = fields.count("sliding_window", 0, low=0)
    whole = fields.count("max_window_layers", count, low=0) if window else count
    windowed = windowed_layers(fields, [i >= whole for i in range(count)])
    rope = read_rope(fields, head_dim_of(fields), theta=10_000.0)
    mixers = (
        attention_of(fields, rope=rope, qk_norm=QkNorm.HEAD, window=window if near else 0)
        for near in windowed
    )
    blocks = feed_forward_of(fields, moe_of(fields, renormalize=False))
    return model_of(fields, "dots1", map(LayerSpec, mixers, blocks))
