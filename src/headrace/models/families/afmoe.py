"""Arcee Trinity: windows with rotation, every fourth layer whole and without; gated outputs, a norm
before and behind each block, balanced sigmoid routing.
"""

from __future__ import annotations

from headrace.models.families.balanced import experts_named, feed_forward_of, moe_of
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    QK_NORM,
    attention_of,
    head_dim_of,
    layers_of,
    model_of,
    windowed_layers,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, OutputGate, QkNorm
from headrace.weights.names import NameMap, rule

_L = "layers.{layer}"
NAMES = NameMap(
    (
        *(r for r in BODY if "post_attention" not in r.stored),
        *(
            rule(f"{_L}.{stored}.weight", f"{_L}.{name}")
            for stored, name in (
                ("post_attention_layernorm", "behind_mixer_norm"),
                ("pre_mlp_layernorm", "ffn_norm"),
                ("post_mlp_layernorm", "behind_ffn_norm"),
                ("self_attn.gate_proj", "gate"),
            )
        ),
        *ATTENTION,
        *QK_NORM,
        *FFN,
        *experts_named(router="router.gate.weight", bias="expert_bias"),
    ),
    prefixes=("model.",),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    every = fields.count("global_attn_every_n_layers", 4)
    count = layers_of(fields)
    windowed = windowed_layers(fields, [(i + 1) % every > 0 for i in range(count)])
    rope = read_rope(fields, head_dim_of(fields), theta=10_000.0)
    window = fields.count("sliding_window", 1024)
    near = attention_of(
        fields, rope=rope, window=window, qk_norm=QkNorm.HEAD, gate=OutputGate.APART
    )
    far = attention_of(fields, rope=None, qk_norm=QkNorm.HEAD, gate=OutputGate.APART)
    fields.fixed(
        {
            "score_func": "sigmoid",
            "route_norm": True,
            "num_expert_groups": 1,
            "num_limited_groups": 1,
        }
    )
    fields.skip("load_balance_coeff", "use_grouped_mm")  # of training, of speed
    moe = moe_of(fields, experts="num_experts", shared="num_shared_experts", scale="route_scale")
    blocks = feed_forward_of(fields, moe, first=1, key="num_dense_layers")
    layers = (
        LayerSpec(near if short else far, block, norms_behind=True)
        for short, block in zip(windowed, blocks, strict=True)
    )
    scaled = fields.flag("mup_enabled", default=False)
    embed_scale = fields.count("hidden_size") ** 0.5 if scaled else 1.0
    return model_of(fields, "afmoe", layers, embed_scale=embed_scale)
