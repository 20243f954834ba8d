"""Qwen3-MoE: a norm per q and k head, softmax routing, possibly dense layers in between."""

from __future__ import annotations

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    QK_NORM,
    attention_of,
    head_dim_of,
    model_of,
)
from headrace.models.families.qwen import EXPERTS, feed_forward_of
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, QkNorm
from headrace.weights.names import NameMap

NAMES = NameMap((*BODY, *ATTENTION, *QK_NORM, *FFN, *EXPERTS), prefixes=("model.",))


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    windowed = fields.flag("use_sliding_window", default=False)
    window = fields.count("sliding_window", 0, low=0)
    mixer = attention_of(
        fields,
        rope=read_rope(fields, head_dim_of(fields), theta=10_000.0),
        window=window if windowed else 0,
        qk_norm=QkNorm.HEAD,
    )
    blocks = feed_forward_of(fields)
    return model_of(fields, "qwen3_moe", (LayerSpec(mixer, block) for block in blocks))
