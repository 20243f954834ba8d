"""Granite 3 MoE: multipliers of embedding, residual, attention and logits; one softmax over the
chosen experts, possibly a shared one beside them.
"""

from __future__ import annotations

from typing import Any

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    attention_of,
    experts_of,
    head_dim_of,
    layers_of,
    model_of,
    top_k_of,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, Moe, SharedExpert
from headrace.ops.table import Router, Score
from headrace.weights.names import Layout, NameMap, Rule, rule

_L = "layers.{layer}"
_M = f"{_L}.block_sparse_moe"


def _mlp(stored: str, stem: str) -> tuple[Rule, ...]:
    """Gate rows before up rows in one matrix, or in one of each expert."""
    return (
        rule(
            f"{stored}.input_linear.weight", f"{stem}.gate", f"{stem}.up", layouts=(Layout.HALVES,)
        ),
        rule(f"{stored}.output_linear.weight", f"{stem}.down"),
    )


RULES = (
    *BODY,
    *ATTENTION,
    *_mlp(_M, f"{_L}.experts"),
    *_mlp(f"{_L}.shared_mlp", f"{_L}.shared"),
    rule(f"{_M}.router.layer.weight", f"{_L}.router"),
)
NAMES = NameMap(RULES, prefixes=("model.",))


def multipliers_of(fields: Fields) -> dict[str, Any]:
    """Those of the whole model."""
    return {
        "embed_scale": fields.number("embedding_multiplier", 1.0),
        "residual_scale": fields.number("residual_multiplier", 1.0),
        "logit_scale": 1.0 / fields.number("logits_scaling", 1.0),
    }


def moe_of(fields: Fields) -> Moe:
    """The experts of every layer."""
    beside = fields.count("shared_intermediate_size", 0, low=0)
    return Moe(
        experts=experts_of(fields),
        width=fields.count("intermediate_size"),
        router=Router(top_k=top_k_of(fields, 2), score=Score.SOFTMAX_OF_TOP_K, renormalize=False),
        activation=fields.activation(),
        shared=SharedExpert(beside, gated=False) if beside else None,
    )


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    mixer = attention_of(
        fields,
        rope=read_rope(fields, head_dim_of(fields), theta=10_000.0),
        scale=fields.number("attention_multiplier", 1.0),
    )
    layers = [LayerSpec(mixer, moe_of(fields))] * layers_of(fields)
    return model_of(fields, "granitemoe", layers, **multipliers_of(fields))
