"""K-EXAONE: three layers with a window, then one without window and without rotation; a norm per q
and k head; balanced sigmoid routing.
"""

from __future__ import annotations

from headrace.models.families.balanced import experts_named, feed_forward_of, moe_of
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    QK_NORM,
    attention_of,
    head_dim_of,
    layers_of,
    model_of,
    windowed_layers,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, QkNorm
from headrace.weights.names import NameMap

NAMES = NameMap(
    (*BODY, *ATTENTION, *QK_NORM, *FFN, *experts_named(bias="e_score_correction_bias")),
    prefixes=("model.",),
    skipped=("mtp.",),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    count = layers_of(fields)
    window = fields.count("sliding_window", 0, low=0)
    windowed = windowed_layers(fields, _pattern(fields, count))
    rope = read_rope(fields, head_dim_of(fields), theta=10_000.0)
    local = attention_of(fields, rope=rope, window=window, qk_norm=QkNorm.HEAD)
    whole = attention_of(fields, rope=None if window else rope, qk_norm=QkNorm.HEAD)
    moe = moe_of(fields, experts="num_experts", shared="num_shared_experts")
    blocks = feed_forward_of(fields, moe, first=1)
    sparse = [block is moe for block in blocks]
    if fields.get("is_moe_layer", sparse) != sparse:
        raise fields.error("is_moe_layer", "what mlp_layer_types or first_k_dense_replace say")
    mixers = (local if window and near else whole for near in windowed)
    return model_of(fields, "exaone_moe", map(LayerSpec, mixers, blocks))


def _pattern(fields: Fields, count: int) -> list[bool]:
    """`sliding_window_pattern`: every so manieth layer is whole, or a letter for each. Whether each
    has a window.
    """
    pattern = fields.get("sliding_window_pattern", 4)
    if isinstance(pattern, int) and 0 < pattern < 1 << 12:
        pattern = "L" * (pattern - 1) + "G"
    if not isinstance(pattern, str) or not pattern or set(pattern) - set("LG"):
        raise fields.error("sliding_window_pattern", "a number of layers, or letters L and G")
    return [pattern[i % len(pattern)] == "L" for i in range(count)]
