"""Mellum 2: as Qwen3-MoE, with windows and a rotation for each kind of layer."""

from __future__ import annotations

from headrace.models.families.balanced import feed_forward_of
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    QK_NORM,
    WHOLE,
    WINDOW,
    attention_of,
    experts_of,
    head_dim_of,
    layers_of,
    model_of,
    top_k_of,
    windowed_layers,
)
from headrace.models.families.qwen import EXPERTS
from headrace.models.fields import Fields, read_ropes
from headrace.models.spec import LayerSpec, ModelSpec, Moe, QkNorm
from headrace.ops.table import Router
from headrace.weights.names import NameMap

NAMES = NameMap(
    (*BODY, *ATTENTION, *QK_NORM, *FFN, *EXPERTS), prefixes=("model.",), skipped=("mtp.",)
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    width = head_dim_of(fields)
    ropes = read_ropes(fields, {WHOLE: (width, 500_000.0, 1.0), WINDOW: (width, 10_000.0, 1.0)})
    window = fields.count("sliding_window", 1024)
    near = attention_of(fields, rope=ropes[WINDOW], window=window, qk_norm=QkNorm.HEAD)
    far = attention_of(fields, rope=ropes[WHOLE], qk_norm=QkNorm.HEAD)
    # Of what predicts further tokens.
    fields.skip("num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types")
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("moe_intermediate_size"),
        router=Router(
            top_k=top_k_of(fields), renormalize=fields.flag("norm_topk_prob", default=True)
        ),
        activation=fields.activation(),
    )
    mixers = [
        near if short else far for short in windowed_layers(fields, [False] * layers_of(fields))
    ]
    blocks = feed_forward_of(fields, moe)
    return model_of(fields, "mellum", map(LayerSpec, mixers, blocks))
