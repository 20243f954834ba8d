"""Poolside Laguna: a number of heads, a window and a rotation by kind of layer, outputs gated by a
softplus, balanced sigmoid routing.
"""

from __future__ import annotations

from headrace.models.families.balanced import experts_named, feed_forward_of
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    QK_NORM,
    WHOLE,
    WINDOW,
    attention_of,
    experts_of,
    head_dim_of,
    layers_of,
    model_of,
    top_k_of,
    windowed_layers,
)
from headrace.models.fields import Fields, read_ropes
from headrace.models.spec import (
    Attention,
    LayerSpec,
    ModelSpec,
    Moe,
    OutputGate,
    QkNorm,
    SharedExpert,
)
from headrace.ops.table import Router, Score
from headrace.weights.names import NameMap, rule

NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *QK_NORM,
        *FFN,
        rule("layers.{layer}.self_attn.g_proj.weight", "layers.{layer}.gate"),
        *experts_named(bias="experts.e_score_correction_bias", shared="shared_expert"),
    ),
    prefixes=("model.",),
)
_GATES = {
    True: OutputGate.SOFTPLUS_HEAD,
    "per-head": OutputGate.SOFTPLUS_HEAD,
    "per-element": OutputGate.SOFTPLUS,
}


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    if fields.flag("moe_apply_router_weight_on_input", default=False):
        raise fields.error("moe_apply_router_weight_on_input", "false, as published")
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("moe_intermediate_size"),
        router=Router(
            top_k=top_k_of(fields),
            score=Score.SIGMOID,
            scale=fields.number("moe_routed_scaling_factor", 1.0),
        ),
        activation=fields.activation(),
        correction_bias=True,
        shared=SharedExpert(fields.count("shared_expert_intermediate_size"), gated=False),
        logit_cap=fields.number("moe_router_logit_softcapping")
        if fields.get("moe_router_logit_softcapping")
        else 0.0,
    )
    blocks = feed_forward_of(fields, moe, first=1)
    return model_of(fields, "laguna", map(LayerSpec, _mixers(fields), blocks))


def _mixers(fields: Fields) -> list[Attention]:
    count, width = layers_of(fields), head_dim_of(fields)
    windowed = windowed_layers(fields, [False] * count)
    ropes = read_ropes(fields, {WHOLE: (width, 500_000.0, 0.5), WINDOW: (width, 10_000.0, 1.0)})
    gate = fields.get("gating", True)
    if not isinstance(gate, bool | str) or gate not in _GATES:
        raise fields.error("gating", "true, per-head or per-element")
    usual = fields.count("num_attention_heads")
    heads = fields.counts("num_attention_heads_per_layer") or [usual] * count
    groups = fields.count("num_key_value_heads")
    if len(heads) != count or any(n == 0 or n % groups for n in heads):
        raise fields.error(
            "num_attention_heads_per_layer", f"{count} multiples of {groups} KV heads"
        )
    window = fields.count("sliding_window", 512)
    return [
        attention_of(
            fields,
            heads=n,
            rope=ropes[WINDOW if near else WHOLE],
            window=window if near else 0,
            qk_norm=QkNorm.HEAD,
            gate=_GATES[gate],
        )
        for n, near in zip(heads, windowed, strict=True)
    ]
