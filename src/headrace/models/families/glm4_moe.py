"""GLM-4.5, 4.6 and 4.7: biased q, k and v, rotation of half a head, balanced sigmoid routing."""

from __future__ import annotations

from headrace.models.families.balanced import feed_forward_of, moe_of
from headrace.models.families.common import (
    attention_of,
    head_dim_of,
    model_of,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, QkNorm


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    normed = fields.flag("use_qk_norm", default=False)
    mixer = attention_of(
        fields,
        rope=read_rope(fields, head_dim_of(fields), theta=10_000.0, partial=0.5),
        qk_norm=QkNorm.HEAD if normed else QkNorm.NONE,
        out_bias=False,
    )
    blocks = feed_forward_of(fields, moe_of(fields), first=1)
    return model_of(fields, "glm4_moe", (LayerSpec(mixer, block) for block in blocks))
