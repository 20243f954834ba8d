"""MiMo-V2-Flash: heads of 192 channels with values of 128; five layers of six have a window, sinks
and twice the KV heads; balanced sigmoid routing.
"""

from __future__ import annotations

from headrace.models.families.balanced import experts_named, feed_forward_of, moe_of
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    WHOLE,
    WINDOW,
    attention_of,
    head_dim_of,
    layers_of,
    model_of,
    windowed_layers,
)
from headrace.models.fields import Fields, read_ropes
from headrace.models.spec import Attention, LayerSpec, ModelSpec
from headrace.weights.names import NameMap, rule

NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *FFN,
        rule("layers.{layer}.self_attn.attention_sink_bias", "layers.{layer}.sinks"),
        *experts_named(),
    ),
    prefixes=("model.",),
    skipped=("model.mtp.",),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as `transformers` writes it."""
    blocks = feed_forward_of(fields, moe_of(fields), first=1)
    return model_of(fields, "mimo_v2_flash", map(LayerSpec, _mixers(fields), blocks))


def _mixers(fields: Fields) -> list[Attention]:
    count, width = layers_of(fields), head_dim_of(fields)
    windowed = windowed_layers(fields, [i > 0 and (i + 1) % 6 > 0 for i in range(count)])
    ropes = read_ropes(
        fields, {WHOLE: (width, 5_000_000.0, 0.334), WINDOW: (width, 10_000.0, 0.334)}
    )
    # Published as the number of tokens before the query's own.
    before = fields.count("sliding_window_size", fields.count("sliding_window", 129) - 1)
    heads = fields.divisor("num_key_value_heads", fields.count("num_attention_heads"))
    values = fields.count("v_head_dim", 128)
    more = {
        "value_dim": values,
        "value_scale": fields.number("attention_value_scale", 1.0),
        "out_bias": False,
    }
    near = attention_of(
        fields, kv_heads=2 * heads, rope=ropes[WINDOW], window=before + 1, sinks=True, **more
    )
    far = attention_of(fields, kv_heads=heads, rope=ropes[WHOLE], **more)
    return [near if short else far for short in windowed]
