"""gpt-oss: alternating windows, a sink per head, biases everywhere, clamped gates, yarn.

Experts are stacked as [E, in, out] with gate and up channels alternating.
"""

from __future__ import annotations

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    attention_of,
    experts_of,
    head_dim_of,
    layers_of,
    model_of,
    top_k_of,
    windowed_layers,
)
from headrace.models.families.gguf import GGUF_RULES
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, Moe
from headrace.ops.table import Activation, Router, Score
from headrace.weights.names import Layout, NameMap, rule

_L, _E = "layers.{layer}", "layers.{layer}.experts"
NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        rule(f"{_L}.self_attn.sinks", f"{_L}.sinks"),
        rule(f"{_L}.mlp.router.weight", f"{_L}.router"),
        rule(f"{_L}.mlp.router.bias", f"{_L}.router.bias"),
        rule(
            f"{_L}.mlp.experts.gate_up_proj",
            f"{_E}.gate",
            f"{_E}.up",
            layouts=(Layout.TRANSPOSE, Layout.EVEN_ODD),
        ),
        rule(
            f"{_L}.mlp.experts.gate_up_proj_bias",
            f"{_E}.gate.bias",
            f"{_E}.up.bias",
            layouts=(Layout.EVEN_ODD_LAST,),
        ),
        rule(f"{_L}.mlp.experts.down_proj", f"{_E}.down", layouts=(Layout.TRANSPOSE,)),
        rule(f"{_L}.mlp.experts.down_proj_bias", f"{_E}.down.bias"),
    ),
    prefixes=("model.",),
)
GGUF_NAMES = NameMap(
    (
        *GGUF_RULES,
        rule("blk.{layer}.attn_sinks.weight", f"{_L}.sinks"),
    ),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    count = layers_of(fields)
    windowed = windowed_layers(fields, [i % 2 == 0 for i in range(count)])
    rope = read_rope(fields, head_dim_of(fields), theta=150_000.0)
    window = fields.count("sliding_window", 0, low=0)
    top_k = top_k_of(fields)
    if fields.get("experts_per_token", top_k) != top_k:
        raise fields.error("experts_per_token", f"{top_k} as num_experts_per_tok")
    fields.get("initial_context_length")  # repeats original_max_position_embeddings
    fields.activation()  # published as silu; the experts' own is what the family always has
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("intermediate_size"),
        router=Router(top_k=top_k, score=Score.SOFTMAX_OF_TOP_K, renormalize=False),
        activation=Activation.CLAMPED_SIGMOID,
        alpha=fields.number("swiglu_alpha", 1.702),
        limit=fields.number("swiglu_limit", 7.0),
        router_bias=True,
        expert_bias=True,
    )
    biased = fields.flag("attention_bias", default=True)
    layers = [
        LayerSpec(
            attention_of(
                fields,
                rope=rope,
                window=window if near else 0,
                sinks=True,
                bias=biased,
                out_bias=biased,
            ),
            moe,
        )
        for near in windowed
    ]
    return model_of(fields, "gpt_oss", layers)
