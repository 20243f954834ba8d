"""Qwen1.5-MoE and Qwen2-57B-A14B: biased q, k and v, softmax routing, a gated shared expert."""

from __future__ import annotations

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    SHARED,
    attention_of,
    experts_of,
    head_dim_of,
    layers_of,
    model_of,
    per_expert,
    sparse_layers,
    top_k_of,
)
from headrace.models.families.gguf import GGUF_ATTENTION, GGUF_BODY, GGUF_FFN, GGUF_MOE, GGUF_SHARED
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import Dense, LayerSpec, ModelSpec, Moe, SharedExpert
from headrace.ops.table import Router
from headrace.weights.names import NameMap, rule

NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *FFN,
        *SHARED,
        *per_expert("layers.{layer}.mlp.experts.{expert}", "gate_proj", "up_proj", "down_proj"),
        rule("layers.{layer}.mlp.gate.weight", "layers.{layer}.router"),
    ),
    prefixes=("model.",),
)
GGUF_NAMES = NameMap((*GGUF_BODY, *GGUF_ATTENTION, *GGUF_FFN, *GGUF_MOE, *GGUF_SHARED))
_KINDS = ("sliding_attention", "full_attention")


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    count = layers_of(fields)
    window = fields.count("sliding_window", 0, low=0)
    window = window if fields.flag("use_sliding_window", default=False) else 0
    until = fields.count("max_window_layers", count, low=0) if window else 0
    kinds = fields.words("layer_types", count, _KINDS) or [
        _KINDS[1] if i % 2 or i >= until else _KINDS[0] for i in range(count)
    ]
    rope = read_rope(fields, head_dim_of(fields), theta=10_000.0)
    biased = fields.flag("qkv_bias", default=True)
    activation = fields.activation()
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("moe_intermediate_size"),
        router=Router(
            top_k=top_k_of(fields), renormalize=fields.flag("norm_topk_prob", default=False)
        ),
        activation=activation,
        shared=SharedExpert(fields.count("shared_expert_intermediate_size"), gated=True),
    )
    dense = Dense(fields.count("intermediate_size"), activation)
    layers = (
        LayerSpec(
            attention_of(
                fields,
                rope=rope,
                window=window if kind == _KINDS[0] else 0,
                bias=biased,
                out_bias=False,
            ),
            moe if sparse else dense,
        )
        for kind, sparse in zip(kinds, sparse_layers(fields), strict=True)
    )
    return model_of(fields, "qwen2_moe", layers)
