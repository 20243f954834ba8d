"""A.X-K1: DeepSeek-V3 with a norm behind each mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from headrace.models.families.balanced import feed_forward_of, moe_of
from headrace.models.families.deepseek import RULES, latent_model, latent_of
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec
from headrace.weights.names import NameMap, rule

NAMES = NameMap(
    (*RULES, rule("layers.{layer}.post_mlp_layernorm.weight", "layers.{layer}.sum_norm")),
    prefixes=("model.",),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    moe = replace(moe_of(fields), sum_eps=fields.number("rms_norm_eps"))
    blocks = feed_forward_of(fields, moe, first=1)
    return latent_model(fields, "axk1", latent_of(fields), blocks)
