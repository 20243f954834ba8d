"""dots.llm1: a norm per q and k head, balanced sigmoid routing, windows in later layers if any."""

from __future__ import annotations

from headrace.models.families.balanced import (
    experts_named,
    feed_forward_of,
    moe_of,
)
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    QK_NORM,
    attention_of,
    head_dim_of,
    layers_of,
    model_of,
)
from headrace.models.families.gguf import (
    GGUF_ATTENTION,
    GGUF_BODY,
    GGUF_EXPERTS,
    GGUF_FFN,
    GGUF_MOE,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, QkNorm
from headrace.weights.names import NameMap

NAMES = NameMap(
    (*BODY, *ATTENTION, *QK_NORM, *FFN, *experts_named()),
    prefixes=("model.",),
)
GGUF_NAMES = NameMap((*GGUF_BODY, *GGUF_ATTENTION, *GGUF_FFN, *GGUF_MOE, *GGUF_EXPERTS))
_KINDS = ("sliding_attention", "full_attention")


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    count = layers_of(fields)
    window = fields.count("sliding_window", 0, low=0)
    whole = fields.count("max_window_layers", count, low=0) if window else count
    kinds = fields.words("layer_types", count, _KINDS) or [
        _KINDS[1] if i < whole else _KINDS[0] for i in range(count)
    ]
    rope = read_rope(fields, head_dim_of(fields), theta=10_000.0)
    mixers = (
        attention_of(
            fields, rope=rope, qk_norm=QkNorm.HEAD, window=window if kind == _KINDS[0] else 0
        )
        for kind in kinds
    )
    blocks = feed_forward_of(fields, moe_of(fields, renormalize=False))
    return model_of(fields, "dots1", map(LayerSpec, mixers, blocks))
