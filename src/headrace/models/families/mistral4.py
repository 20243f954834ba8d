"""Mistral Small 4: DeepSeek's latent attention, renormalised softmax routing, stacked experts."""

from __future__ import annotations

from dataclasses import replace

from headrace.models.families.balanced import feed_forward_of, moe_of
from headrace.models.families.common import stacked
from headrace.models.families.deepseek import RULES, latent_model, latent_of
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, Temperature
from headrace.ops.table import Score
from headrace.weights.names import NameMap

NAMES = NameMap(
    (
        *RULES,
        *stacked("layers.{layer}.mlp.experts"),
    ),
    prefixes=("model.", "language_model.model.", "language_model.", "model.language_model."),
    skipped=tuple(
        f"{at}{part}."
        for at in ("", "model.")
        for part in ("vision_tower", "multi_modal_projector")
    ),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    moe = moe_of(fields)
    moe = replace(moe, router=replace(moe.router, score=Score.SOFTMAX), correction_bias=False)
    blocks = feed_forward_of(fields, moe)
    known = ("llama_4_scaling_beta", "max_position_embeddings")
    mixer = latent_of(fields, known=known, of_head=True)
    mixer = replace(mixer, temperature=_temperature(fields))
    return latent_model(fields, "mistral4", mixer, blocks)


def _temperature(fields: Fields) -> Temperature | None:
    table = fields.table("rope_parameters")
    if table is None or not table.get("llama_4_scaling_beta"):
        return None
    span, strength = "original_max_position_embeddings", "llama_4_scaling_beta"
    return Temperature(table.count(span), table.number(strength), ahead=0)
