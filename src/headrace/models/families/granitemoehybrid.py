"""Granite 4 with experts: Granite 3's experts and multipliers behind Mamba 2 layers, and attention
without rotation every few layers.
"""

from __future__ import annotations

from headrace.models.families import granitemoe
from headrace.models.families.common import attention_of, head_dim_of, layers_of, model_of
from headrace.models.families.gguf import GGUF_RULES
from headrace.models.families.mamba import GGUF_MAMBA, check_steps, mamba_named
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import Attention, LayerSpec, ModelSpec, Ssm
from headrace.weights.names import NameMap

NAMES = NameMap((*granitemoe.RULES, *mamba_named("mamba")), prefixes=("model.",))
GGUF_NAMES = NameMap((*GGUF_MAMBA, *GGUF_RULES))
_MAMBA, _ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    check_steps(fields)
    fields.fixed({"init_method": "mup", "normalization_function": "rmsnorm"})
    count = layers_of(fields)
    kinds = fields.words("layer_types", count, (*_MAMBA, *_ATTENTION))
    if kinds is None:
        raise fields.error("layer_types", f"{count} of {_MAMBA[0]}, {_ATTENTION[0]}")
    ssm, attention, moe = _ssm(fields), _attention(fields), granitemoe.moe_of(fields)
    layers = [LayerSpec(ssm if kind in _MAMBA else attention, moe) for kind in kinds]
    return model_of(fields, "granitemoehybrid", layers, **granitemoe.multipliers_of(fields))


def _attention(fields: Fields) -> Attention:
    turned = fields.get("position_embedding_type", "nope")
    if turned not in ("nope", "rope"):
        raise fields.error("position_embedding_type", "nope or rope")
    rope = read_rope(fields, head_dim_of(fields), theta=10_000.0)
    return attention_of(
        fields,
        rope=rope if turned == "rope" else None,
        scale=fields.number("attention_multiplier", 1.0),
    )


def _ssm(fields: Fields) -> Ssm:
    heads = fields.count("mamba_n_heads")
    inner = fields.count("mamba_expand", 2) * fields.count("hidden_size")
    if inner % heads or fields.get("mamba_d_head", "auto") not in ("auto", inner // heads):
        raise fields.error("mamba_d_head", f"the width of {heads} heads of {inner} channels")
    return Ssm(
        heads=heads,
        head_dim=inner // heads,
        groups=fields.divisor("mamba_n_groups", heads),
        state=fields.count("mamba_d_state"),
        kernel=fields.count("mamba_d_conv", low=2),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias", default=False),
        rate=fields.flag("decay_as_rate", default=False),
    )
