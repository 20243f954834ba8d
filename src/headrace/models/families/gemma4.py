"""Gemma 4 with experts, text part: a dense block beside the experts, norms around everything, wide
heads without values of their own on every sixth layer.
"""

from __future__ import annotations

from headrace.models.families.common import (
    WHOLE,
    WINDOW,
    attention_of,
    experts_of,
    layers_of,
    model_of,
    windowed_layers,
)
from headrace.models.fields import Fields, read_ropes
from headrace.models.spec import Attention, Dense, LayerSpec, ModelSpec, Moe, QkNorm
from headrace.ops.table import Router


def spec_from(fields: Fields) -> ModelSpec:
    """From the text config as published."""
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        fields.count(key, high=0, low=0, default=0)
    if not fields.flag("enable_moe_block", default=False):
        raise fields.error("enable_moe_block", "true: a Mixture-of-Experts model")
    if fields.get("use_bidirectional_attention") not in (None, "vision"):
        raise fields.error("use_bidirectional_attention", "null or vision: text looks back alone")
    # The first is of embeddings, the second of layers with shared keys, which there are none of.
    fields.skip("vocab_size_per_layer_input", "use_double_wide_mlp")
    activation = fields.activation("hidden_activation")
    experts = experts_of(fields)
    moe = Moe(
        experts=experts,
        width=fields.count("moe_intermediate_size"),
        router=Router(top_k=fields.count("top_k_experts", high=experts)),
        activation=activation,
        expert_scales=True,
        beside=Dense(fields.count("intermediate_size"), activation),
    )
    layers = (LayerSpec(m, moe, norms_behind=True, scaled=True) for m in _mixers(fields))
    return model_of(
        fields,
        "gemma4",
        layers,
        tied=True,
        embed_scale=fields.count("hidden_size") ** 0.5,
        logit_cap=fields.number("final_logit_softcapping", 1e-30) if _capped(fields) else 0.0,
    )


def _capped(fields: Fields) -> bool:
    return fields.get("final_logit_softcapping") is not None


def _mixers(fields: Fields) -> list[Attention]:
    """Of each layer: with a window, or whole, with heads of another width and number."""
    count = layers_of(fields)
    windowed = windowed_layers(fields, [(i + 1) % 6 > 0 for i in range(count)])
    window = fields.count("sliding_window", 512)
    same = fields.flag("attention_k_eq_v", default=False)
    near_dim = fields.count("head_dim", 256)
    far_dim, far_heads = _wide(fields, windowed, same=same)
    ropes = read_ropes(
        fields, {WINDOW: (near_dim, 10_000.0, 1.0), WHOLE: (far_dim, 1_000_000.0, 1.0)}
    )
    more = {"scale": 1.0, "qk_norm": QkNorm.HEAD, "unit_values": True}
    near = attention_of(
        fields, head_dim=near_dim, value_dim=near_dim, rope=ropes[WINDOW], window=window, **more
    )
    far = attention_of(
        fields,
        head_dim=far_dim,
        value_dim=far_dim,
        kv_heads=far_heads,
        rope=ropes[WHOLE],
        values_of_keys=same,
        **more,
    )
    return [near if short else far for short in windowed]


def _wide(fields: Fields, windowed: list[bool], *, same: bool) -> tuple[int, int]:
    """Width and number of KV heads of the layers without a window."""
    heads = fields.count("num_attention_heads")
    usual = fields.divisor("num_key_value_heads", heads)
    width = fields.count("global_head_dim", 512)
    number = fields.divisor("num_global_key_value_heads", heads, usual)
    listed = fields.table("per_layer_config")
    found = {(width, number if same else usual)} if listed is None else set()
    for i in [i for i, near in enumerate(windowed) if not near and listed]:
        own = listed.table(str(i)) if listed else None
        if own is not None:
            found.add(
                (own.count("head_dim"), own.divisor("num_key_value_heads", heads, usual)),
            )
            own.finish()
    if listed is not None:
        listed.finish()
    if len(found) != 1:
        raise fields.error("per_layer_config", "one width for all layers without a window")
    return found.pop()
