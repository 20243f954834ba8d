"""Qwen3-MoE: a norm per q and k head, softmax routing, possibly dense layers in between."""

from __future__ import annotations

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    QK_NORM,
    attention_of,
    experts_of,
    head_dim_of,
    model_of,
    per_expert,
    sparse_layers,
    top_k_of,
)
from headrace.models.families.gguf import GGUF_ATTENTION, GGUF_BODY, GGUF_FFN, GGUF_MOE
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import Dense, LayerSpec, ModelSpec, Moe, QkNorm
from headrace.ops.table import Router
from headrace.weights.names import NameMap, rule

NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *QK_NORM,
        *FFN,
        *per_expert("layers.{layer}.mlp.experts.{expert}", "gate_proj", "up_proj", "down_proj"),
        rule("layers.{layer}.mlp.gate.weight", "layers.{layer}.router"),
    ),
    prefixes=("model.",),
)
GGUF_NAMES = NameMap((*GGUF_BODY, *GGUF_ATTENTION, *GGUF_FFN, *GGUF_MOE))


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    windowed = fields.flag("use_sliding_window", default=False)
    window = fields.count("sliding_window", 0, low=0)
    mixer = attention_of(
        fields,
        rope=read_rope(fields, head_dim_of(fields), theta=10_000.0),
        window=window if windowed else 0,
        qk_norm=QkNorm.HEAD,
    )
    activation = fields.activation()
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("moe_intermediate_size"),
        router=Router(
            top_k=top_k_of(fields),
            renormalize=fields.flag("norm_topk_prob", default=False),
        ),
        activation=activation,
    )
    dense = Dense(fields.count("intermediate_size"), activation)
    layers = (LayerSpec(mixer, moe if sparse else dense) for sparse in sparse_layers(fields))
    return model_of(fields, "qwen3_moe", layers)
