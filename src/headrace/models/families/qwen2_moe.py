"""Qwen1.5-MoE and Qwen2-57B-A14B: biased q, k and v, softmax routing, a gated shared expert."""

from __future__ import annotations

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    attention_of,
    head_dim_of,
    layers_of,
    model_of,
    windowed_layers,
)
from headrace.models.families.qwen import EXPERTS, SHARED, feed_forward_of, shared_of
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec
from headrace.weights.names import NameMap

NAMES = NameMap((*BODY, *ATTENTION, *FFN, *SHARED, *EXPERTS), prefixes=("model.",))


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    count = layers_of(fields)
    window = fields.count("sliding_window", 0, low=0)
    window = window if fields.flag("use_sliding_window", default=False) else 0
    until = fields.count("max_window_layers", count, low=0) if window else 0
    windowed = windowed_layers(fields, [i % 2 == 0 and i < until for i in range(count)])
    rope = read_rope(fields, head_dim_of(fields), theta=10_000.0)
    biased = fields.flag("qkv_bias", default=True)
    mixers = (
        attention_of(fields, rope=rope, window=window if near else 0, bias=biased, out_bias=False)
        for near in windowed
    )
    blocks = feed_forward_of(fields, shared=shared_of(fields))
    return model_of(fields, "qwen2_moe", map(LayerSpec, mixers, blocks))
