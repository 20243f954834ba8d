"""Hunyuan 3: a norm per q and k head, balanced sigmoid routing with one shared expert."""

from __future__ import annotations

from headrace.models.families.balanced import experts_named, feed_forward_of, moe_of
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    QK_NORM,
    attention_of,
    head_dim_of,
    model_of,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, QkNorm
from headrace.weights.names import NameMap

NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *QK_NORM,
        *FFN,
        *experts_named(router="router.gate.weight", bias="expert_bias", shared="shared_mlp"),
    ),
    prefixes=("model.",),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    rope = read_rope(fields, head_dim_of(fields), theta=11_158_840.0)
    mixer = attention_of(fields, rope=rope, qk_norm=QkNorm.HEAD)
    fields.get("enable_moe_fp32_combine")  # sums are float32 here in any case
    moe = moe_of(
        fields,
        experts="num_experts",
        shared="num_shared_experts",
        scale="router_scaling_factor",
    )
    blocks = feed_forward_of(fields, moe, first=1)
    return model_of(fields, "hy_v3", (LayerSpec(mixer, block) for block in blocks))
