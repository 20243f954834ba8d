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


_PATTERN = "hybrid_layer_pattern"


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published, or as `transformers` writes it."""
    blocks = feed_forward_of(fields, moe_of(fields), first=1)
    eps = "rms_norm_eps" if fields.get("rms_norm_eps") is not None else "layernorm_epsilon"
    fields.skip("attention_chunk_size", "hybrid_block_size")  # of an attention that is not used
    return model_of(fields, "mimo_v2_flash", map(LayerSpec, _mixers(fields), blocks), eps=eps)


def _mixers(fields: Fields) -> list[Attention]:
    count, width = layers_of(fields), head_dim_of(fields)
    usual = [i > 0 and (i + 1) % 6 > 0 for i in range(count)]
    listed = fields.counts(_PATTERN)
    if listed and (len(listed) != count or max(listed) > 1):
        raise fields.error(_PATTERN, f"0 or 1 for each of {count} layers")
    windowed = windowed_layers(fields, [n == 1 for n in listed] if listed else usual)
    share = fields.number("partial_rotary_factor", 0.334)
    far_theta, near_theta = (
        fields.number("rope_theta", 5_000_000.0),
        fields.number("swa_rope_theta", 10_000.0),
    )
    ropes = read_ropes(
        fields, {WHOLE: (width, far_theta, share), WINDOW: (width, near_theta, share)}
    )
    # Published as the number of tokens before the query's own.
    before = fields.count("sliding_window_size", fields.count("sliding_window", 129) - 1)
    heads = fields.divisor("num_key_value_heads", fields.count("num_attention_heads"))
    values = fields.count("v_head_dim", 128)
    fields.fixed(
        {
            "swa_head_dim": width,
            "swa_v_head_dim": values,
            "swa_num_attention_heads": fields.count("num_attention_heads"),
            "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False,
        }
    )
    more = {
        "value_dim": values,
        "value_scale": fields.number("attention_value_scale", 1.0),
        "out_bias": False,
    }
    near = attention_of(
        fields,
        kv_heads=fields.divisor(
            "swa_num_key_value_heads", fields.count("num_attention_heads"), 2 * heads
        ),
        rope=ropes[WINDOW],
        window=before + 1,
        sinks=True,
        **more,
    )
    far = attention_of(fields, kv_heads=heads, rope=ropes[WHOLE], **more)
    return [near if short else far for short in windowed]
