"""GLM-4.7-Flash: DeepSeek's latent attention, balanced sigmoid routing."""

from __future__ import annotations

from headrace.models.families.balanced import feed_forward_of, moe_of
from headrace.models.families.deepseek import latent_model, latent_of
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    blocks = feed_forward_of(fields, moe_of(fields), first=1)
    return latent_model(fields, "glm4_moe_lite", latent_of(fields), blocks)
