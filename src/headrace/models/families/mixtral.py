"""Mixtral: plain grouped-query attention, an optional window, the best two experts renormalised."""

from __future__ import annotations

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    attention_of,
    experts_of,
    head_dim_of,
    layers_of,
    model_of,
    per_expert,
    top_k_of,
)
from headrace.models.families.gguf import GGUF_RULES
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, Moe
from headrace.ops.table import Router
from headrace.weights.names import NameMap, rule

_M = "layers.{layer}.block_sparse_moe"
EXPERTS = (
    *per_expert(f"{_M}.experts.{{expert}}", "w1", "w3", "w2"),
    rule(f"{_M}.gate.weight", "layers.{layer}.router"),
)
NAMES = NameMap((*BODY, *ATTENTION, *EXPERTS), prefixes=("model.",))
# Files of 2024 hold experts one by one.
GGUF_NAMES = NameMap(
    (
        *GGUF_RULES,
        *(
            rule(f"blk.{{layer}}.ffn_{n}.{{expert}}.weight", f"layers.{{layer}}.experts.{n}")
            for n in ("gate", "up", "down")
        ),
    ),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    mixer = attention_of(
        fields,
        rope=read_rope(fields, head_dim_of(fields), theta=1_000_000.0),
        window=fields.count("sliding_window", 0, low=0),
    )
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("intermediate_size"),
        router=Router(top_k=top_k_of(fields, 2)),
        activation=fields.activation(),
    )
    layers = [LayerSpec(mixer, moe)] * layers_of(fields)
    return model_of(fields, "mixtral", layers)
