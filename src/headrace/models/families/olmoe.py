"""OLMoE: q and k normed over the whole projection, q, k and v clipped, scores not renormalised."""

from __future__ import annotations

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    QK_NORM,
    attention_of,
    experts_of,
    head_dim_of,
    layers_of,
    model_of,
    per_expert,
    top_k_of,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, Moe, QkNorm
from headrace.ops.table import Router
from headrace.weights.names import NameMap, rule

NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *QK_NORM,
        *per_expert("layers.{layer}.mlp.experts.{expert}", "gate_proj", "up_proj", "down_proj"),
        rule("layers.{layer}.mlp.gate.weight", "layers.{layer}.router"),
    ),
    prefixes=("model.",),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    clip = fields.get("clip_qkv")
    mixer = attention_of(
        fields,
        rope=read_rope(fields, head_dim_of(fields), theta=10_000.0),
        qk_norm=QkNorm.WHOLE,
        clip=None if clip is None else fields.number("clip_qkv"),
    )
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("intermediate_size"),
        router=Router(
            top_k=top_k_of(fields),
            renormalize=fields.flag("norm_topk_prob", default=False),
        ),
        activation=fields.activation(),
    )
    layers = [LayerSpec(mixer, moe)] * layers_of(fields)
    return model_of(fields, "olmoe", layers)
