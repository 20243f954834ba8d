"""Qwen3.5-MoE and Qwen3.6-MoE, text part: gated DeltaNet with gated attention every few layers.

Experts come stacked as [E, out, in] with gate rows before up rows, or one by one.
"""

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
    stacked,
    top_k_of,
)
from headrace.models.families.gguf import GGUF_RULES
from headrace.models.families.qwen import EXPERTS, SHARED, shared_of
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import DeltaRule, LayerSpec, Mixer, ModelSpec, Moe, OutputGate, QkNorm
from headrace.ops.table import Router
from headrace.weights.names import Layout, NameMap, rule

_L, _D = "layers.{layer}", "layers.{layer}.linear_attn"
# The tensors of Gated DeltaNet but for its projections.
DELTA = (
    rule(f"{_D}.conv1d.weight", f"{_L}.conv", layouts=(Layout.DROP_MIDDLE,)),
    rule(f"{_D}.A_log", f"{_L}.a_log"),
    rule(f"{_D}.dt_bias", f"{_L}.dt_bias"),
    rule(f"{_D}.norm.weight", f"{_L}.delta_norm"),
    rule(f"{_D}.out_proj.weight", f"{_L}.o"),
)
NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *QK_NORM,
        *(rule(f"{_D}.in_proj_{n}.weight", f"{_L}.{n}") for n in ("qkv", "z", "b", "a")),
        *DELTA,
        *stacked(f"{_L}.mlp.experts"),
        *EXPERTS,
        *SHARED,
    ),
    prefixes=("model.language_model.", "model."),
    skipped=("mtp.", "model.visual."),
)
_G = "blk.{layer}"
GGUF_DELTA = (
    rule(f"{_G}.attn_qkv.weight", f"{_L}.qkv"),
    rule(f"{_G}.attn_gate.weight", f"{_L}.z"),
    rule(f"{_G}.ssm_conv1d.weight", f"{_L}.conv"),
    rule(f"{_G}.ssm_a", f"{_L}.rate"),
    rule(f"{_G}.ssm_dt.bias", f"{_L}.dt_bias"),
    rule(f"{_G}.ssm_norm.weight", f"{_L}.delta_norm"),
    rule(f"{_G}.ssm_out.weight", f"{_L}.o"),
)
GGUF_NAMES = NameMap(
    (
        *GGUF_RULES,
        *GGUF_DELTA,
        rule(f"{_G}.ssm_beta.weight", f"{_L}.b"),
        rule(f"{_G}.ssm_alpha.weight", f"{_L}.a"),
    ),
)
_KINDS = ("linear_attention", "full_attention")


def mixers_of(fields: Fields, **more: bool) -> list[Mixer]:
    """Of each layer: Gated DeltaNet, about which `more` is known, or gated attention."""
    count = layers_of(fields)
    every = fields.count("full_attention_interval", 4)
    kinds = fields.words("layer_types", count, _KINDS) or [
        _KINDS[0] if (i + 1) % every else _KINDS[1] for i in range(count)
    ]
    attention = attention_of(
        fields,
        rope=read_rope(fields, head_dim_of(fields), theta=10_000.0, partial=0.25),
        qk_norm=QkNorm.HEAD,
        gate=OutputGate.WITHIN_QUERY,
    )
    if not fields.flag("attn_output_gate", default=True):
        raise fields.error("attn_output_gate", "true")
    delta = DeltaRule(
        key_heads=fields.divisor("linear_num_key_heads", fields.count("linear_num_value_heads")),
        value_heads=fields.count("linear_num_value_heads"),
        key_dim=fields.count("linear_key_head_dim"),
        value_dim=fields.count("linear_value_head_dim"),
        kernel=fields.count("linear_conv_kernel_dim", low=2),
        tiled=fields.flag("value_heads_tiled", default=False),
        rate=fields.flag("decay_as_rate", default=False),
        **more,
    )
    return [delta if kind == _KINDS[0] else attention for kind in kinds]


def spec_from(fields: Fields) -> ModelSpec:
    """From the text config as published."""
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("moe_intermediate_size"),
        router=Router(top_k=top_k_of(fields)),
        activation=fields.activation(),
        shared=shared_of(fields),
    )
    layers = [LayerSpec(mixer, moe) for mixer in mixers_of(fields)]
    plus_one = not fields.flag("norms_hold_one", default=False)
    return model_of(fields, "qwen3_5_moe", layers, norm_plus_one=plus_one)
