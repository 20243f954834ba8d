"""MiniMax-M2 and M2.5: q and k normed over the whole projection, rotation of a part of a head,
balanced sigmoid routing without shared expert.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.models.families.balanced import moe_of
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    QK_NORM,
    attention_of,
    head_dim_of,
    layers_of,
    model_of,
)
from headrace.models.families.mixtral import EXPERTS
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, QkNorm
from headrace.weights.names import NameMap, rule

_M = "layers.{layer}.block_sparse_moe"
NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *QK_NORM,
        *EXPERTS,
        rule(f"{_M}.e_score_correction_bias", "layers.{layer}.correction_bias"),
    ),
    prefixes=("model.",),
)
# Of earlier and other models of this house: what M2 is published with.
_FIXED = {
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
}
_NO_PART = (
    "attn_type_list",
    "layernorm_full_attention_beta",
    "layernorm_linear_attention_beta",
    "layernorm_mlp_beta",
    "mlp_intermediate_size",
    "mtp_transformer_layers",
    "num_mtp_modules",
    "shared_moe_mode",
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    fields.fixed(_FIXED)
    fields.skip(*_NO_PART)
    head_dim = head_dim_of(fields)
    share = fields.count("rotary_dim", head_dim, high=head_dim) / head_dim
    rope = read_rope(fields, head_dim, theta=5_000_000.0, partial=share)
    mixer = attention_of(fields, rope=rope, qk_norm=QkNorm.WHOLE)
    moe = moe_of(fields, experts="num_local_experts", width="intermediate_size")
    moe = replace(moe, router=replace(moe.router, renorm_eps=0.0))
    return model_of(fields, "minimax_m2", [LayerSpec(mixer, moe)] * layers_of(fields))
