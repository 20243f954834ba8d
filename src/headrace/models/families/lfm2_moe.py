"""LFM2-MoE: short convolutions between gates, attention every few layers, sigmoid routing."""

from __future__ import annotations

from headrace.models.families.common import (
    WHOLE,
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
from headrace.models.spec import Dense, LayerSpec, ModelSpec, Moe, QkNorm, ShortConv
from headrace.ops.table import Activation, Router, Score
from headrace.weights.names import Layout, NameMap, rule

_L = "layers.{layer}"
_PARTS = (("gate", "w1"), ("up", "w3"), ("down", "w2"))
NAMES = NameMap(
    (
        rule("embed_tokens.weight", "embed"),
        rule("embedding_norm.weight", "norm"),
        rule("lm_head.weight", "head"),
        rule(f"{_L}.operator_norm.weight", f"{_L}.mixer_norm"),
        rule(f"{_L}.ffn_norm.weight", f"{_L}.ffn_norm"),
        *(rule(f"{_L}.self_attn.{n}_proj.weight", f"{_L}.{n}") for n in "qkv"),
        rule(f"{_L}.self_attn.out_proj.weight", f"{_L}.o"),
        *(rule(f"{_L}.self_attn.{n}_layernorm.weight", f"{_L}.{n}_norm") for n in "qk"),
        rule(f"{_L}.conv.conv.weight", f"{_L}.conv", layouts=(Layout.DROP_MIDDLE,)),
        rule(f"{_L}.conv.conv.bias", f"{_L}.conv.bias"),
        *(
            rule(f"{_L}.conv.{stored}_proj.{part}", f"{_L}.{name}{end}")
            for stored, name in (("in", "bcx"), ("out", "o"))
            for part, end in (("weight", ""), ("bias", ".bias"))
        ),
        *(rule(f"{_L}.feed_forward.{n}.weight", f"{_L}.dense.{kind}") for kind, n in _PARTS),
        *per_expert(f"{_L}.feed_forward.experts.{{expert}}", *(n for _, n in _PARTS)),
        rule(f"{_L}.feed_forward.gate.weight", f"{_L}.router"),
        rule(f"{_L}.feed_forward.expert_bias", f"{_L}.correction_bias"),
    ),
    prefixes=("model.",),
)
_G = "blk.{layer}"
GGUF_NAMES = NameMap(
    (
        *GGUF_RULES,
        rule("token_embd_norm.weight", "norm"),
        rule(f"{_G}.shortconv.conv.weight", f"{_L}.conv"),
        rule(f"{_G}.shortconv.in_proj.weight", f"{_L}.bcx"),
        rule(f"{_G}.shortconv.out_proj.weight", f"{_L}.o"),
    )
)
_CONV = "conv"
EPS = 1e-6  # added to the sum by which weights are divided


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    count = layers_of(fields)
    kinds = fields.words("layer_types", count, (_CONV, WHOLE))
    if kinds is None:
        raise fields.error("layer_types", f"{count} of {_CONV}, {WHOLE}")
    attention = attention_of(
        fields, rope=read_rope(fields, head_dim_of(fields), theta=1e6), qk_norm=QkNorm.HEAD
    )
    conv = ShortConv(
        channels=fields.count("hidden_size"),
        kernel=fields.count("conv_L_cache", 3, low=2),
        bias=fields.flag("conv_bias", default=False),
    )
    if fields.count("num_heads", attention.heads) != attention.heads:
        raise fields.error("num_heads", f"{attention.heads}, as num_attention_heads")
    if not fields.flag("use_pos_enc", default=True):
        raise fields.error("use_pos_enc", "true")
    dense = Dense(fields.count("intermediate_size"))
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("moe_intermediate_size"),
        router=Router(
            top_k=top_k_of(fields),
            score=Score.SIGMOID,
            renormalize=fields.flag("norm_topk_prob", default=True),
            renorm_eps=EPS,
            scale=fields.number("routed_scaling_factor", 1.0),
        ),
        activation=Activation.SILU,
        correction_bias=fields.flag("use_expert_bias", default=True),
    )
    before = fields.count("num_dense_layers", 2, low=0, high=count)
    layers = [
        LayerSpec(conv if kind == _CONV else attention, dense if i < before else moe)
        for i, kind in enumerate(kinds)
    ]
    tied = fields.flag("tie_embedding", default=True)
    return model_of(fields, "lfm2_moe", layers, eps="norm_eps", tied=tied)
