"""ERNIE 4.5: rotation of neighbouring channels, softmax scores with a bias that balances the
choice, shared experts beside the routed ones.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.models.families.balanced import beside_of, experts_named
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    attention_of,
    head_dim_of,
    layers_of,
    model_of,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import Dense, LayerSpec, ModelSpec, Moe
from headrace.ops.table import Router
from headrace.weights.names import Layout, NameMap, rule

NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *FFN,
        *experts_named(bias=None),
        rule(
            "layers.{layer}.mlp.moe_statics.e_score_correction_bias",
            "layers.{layer}.correction_bias",
            layouts=(Layout.DROP_FIRST,),
        ),
    ),
    prefixes=("model.",),
    skipped=("model.mtp",),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    if fields.flag("use_bias", default=False):
        raise fields.error("use_bias", "false, as published")
    rope = replace(read_rope(fields, head_dim_of(fields), theta=500_000.0), interleaved=True)
    mixer = attention_of(fields, rope=rope)
    count = layers_of(fields)
    experts = fields.count("moe_num_experts", high=1 << 16)
    width, activation = fields.count("moe_intermediate_size"), fields.activation()
    fields.number("moe_norm_min", 1e-12)  # no sum of chosen scores is so small
    moe = Moe(
        experts=experts,
        width=width,
        router=Router(top_k=fields.count("moe_k", high=experts)),
        activation=activation,
        correction_bias=True,
        shared=beside_of(fields, "moe_num_shared_experts", width),
    )
    dense = Dense(fields.count("intermediate_size"), activation)
    every = fields.count("moe_layer_interval", 1)
    first = fields.count("moe_layer_start_index", 1, low=0)
    last = fields.get("moe_layer_end_index", -1)
    if type(last) is not int or not -1 <= last < count:
        raise fields.error("moe_layer_end_index", f"-1 to {count - 1}")
    last = count - 1 if last == -1 else last
    layers = (
        LayerSpec(mixer, moe if first <= i <= last and (i + 1) % every == 0 else dense)
        for i in range(count)
    )
    return model_of(fields, "ernie4_5_moe", layers)
