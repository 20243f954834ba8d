"""Sarvam 105B: DeepSeek's latent attention without latents of queries, balanced sigmoid routing."""

from __future__ import annotations

from headrace.models.families.balanced import feed_forward_of, moe_of
from headrace.models.families.deepseek import latent_model, latent_of
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published, with the names of its first release or of its second."""
    first = fields.get("n_routed_experts") is None
    moe = moe_of(
        fields,
        experts="num_experts" if first else "n_routed_experts",
        shared="num_shared_experts" if first else "n_shared_experts",
    )
    blocks = feed_forward_of(fields, moe, first=1)
    return latent_model(fields, "sarvam_mla", latent_of(fields), blocks)
