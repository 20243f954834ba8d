"""Qwen3-MoE: grouped-query attention with a norm per q and k head, softmax routing, some layers
dense.
"""

from __future__ import annotations

from headrace.models.families.common import ATTENTION, BODY, FFN, QK_NORM, per_expert
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import Attention, Dense, LayerSpec, ModelSpec, Moe, QkNorm
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


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    head_dim = fields.count(
        "head_dim", fields.count("hidden_size") // fields.count("num_attention_heads")
    )
    windowed = fields.flag("use_sliding_window", False)
    window = fields.count("sliding_window", 0, low=0)
    mixer = Attention(
        heads=fields.count("num_attention_heads"),
        kv_heads=fields.count("num_key_value_heads"),
        head_dim=head_dim,
        value_dim=head_dim,
        scale=head_dim**-0.5,
        rope=read_rope(fields, head_dim, theta=10_000.0),
        window=window if windowed else 0,
        qk_norm=QkNorm.HEAD,
        bias=fields.flag("attention_bias", False),
    )
    activation = fields.activation()
    experts = fields.get("num_experts") or fields.count("num_local_experts")
    moe = Moe(
        experts=experts,
        width=fields.count("moe_intermediate_size"),
        router=Router(
            top_k=fields.count("num_experts_per_tok"),
            renormalize=fields.flag("norm_topk_prob", False),
        ),
        activation=activation,
    )
    dense = Dense(fields.count("intermediate_size"), activation)
    every = fields.count("decoder_sparse_step", 1)
    plain = fields.get("mlp_only_layers", [])
    layers = tuple(
        LayerSpec(mixer, dense if i in plain or (i + 1) % every else moe)
        for i in range(fields.count("num_hidden_layers"))
    )
    return ModelSpec(
        family="qwen3_moe",
        hidden=fields.count("hidden_size"),
        vocab=fields.count("vocab_size"),
        max_context=fields.count("max_position_embeddings"),
        eps=fields.number("rms_norm_eps"),
        tied=fields.flag("tie_word_embeddings", False),
        layers=layers,
    )
