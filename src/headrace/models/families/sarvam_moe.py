"""Sarvam 30B: as GLM-4.5, with whole rotation and one matrix for q, k and v."""

from __future__ import annotations

from headrace.models.families.balanced import experts_named, feed_forward_of, moe_of
from headrace.models.families.common import BODY, FFN, attention_of, head_dim_of, model_of
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, QkNorm
from headrace.weights.names import NameMap, rule

_L = "layers.{layer}"
NAMES = NameMap(
    (
        *BODY,
        rule("word_embeddings.weight", "embed"),
        *(
            rule(f"{_L}.attention.{stored}", f"{_L}.{name}")
            for stored, name in (
                ("query_key_value.weight", "qkv"),
                ("query_key_value.bias", "qkv.bias"),
                ("dense.weight", "o"),
                ("dense.bias", "o.bias"),
                ("query_layernorm.weight", "q_norm"),
                ("key_layernorm.weight", "k_norm"),
            )
        ),
        *FFN,
        *experts_named(bias="gate.expert_bias"),
    ),
    prefixes=("model.",),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published; two sets of names are about."""
    normed = fields.flag("use_qk_norm", default=True)
    original = fields.get("num_experts") is not None
    biased = fields.flag("use_qkv_bias" if original else "attention_bias", default=False)
    mixer = attention_of(
        fields,
        rope=read_rope(fields, head_dim_of(fields), theta=8_000_000.0),
        qk_norm=QkNorm.HEAD if normed else QkNorm.NONE,
        bias=biased,
        out_bias=False,
        fused=True,
    )
    moe = moe_of(
        fields,
        experts="num_experts" if original else "n_routed_experts",
        shared="num_shared_experts" if original else "n_shared_experts",
    )
    blocks = feed_forward_of(fields, moe, first=1)
    layers = (LayerSpec(mixer, block) for block in blocks)
    return model_of(fields, "sarvam_moe", layers)
