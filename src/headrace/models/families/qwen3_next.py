"""Qwen3-Next and Qwen3-Coder-Next: as Qwen3.5, but one matrix has q, k, v and gate of all heads,
key head after key head, and another their decay and update rate.
"""

from __future__ import annotations

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    QK_NORM,
    SHARED,
    experts_of,
    model_of,
    per_expert,
    sparse_layers,
    top_k_of,
)
from headrace.models.families.gguf import (
    GGUF_ATTENTION,
    GGUF_BODY,
    GGUF_FFN,
    GGUF_MOE,
    GGUF_SHARED,
)
from headrace.models.families.qwen3_5_moe import DELTA, GGUF_DELTA, mixers_of
from headrace.models.fields import Fields
from headrace.models.spec import Dense, LayerSpec, ModelSpec, Moe, SharedExpert
from headrace.ops.table import Router
from headrace.weights.names import NameMap, rule

_L = "layers.{layer}"
NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *QK_NORM,
        *FFN,
        *(rule(f"{_L}.linear_attn.in_proj_{n}.weight", f"{_L}.{n}") for n in ("qkvz", "ba")),
        *DELTA,
        rule(f"{_L}.mlp.gate.weight", f"{_L}.router"),
        *per_expert(f"{_L}.mlp.experts.{{expert}}", "gate_proj", "up_proj", "down_proj"),
        *SHARED,
    ),
    prefixes=("model.",),
    skipped=("mtp.",),
)
GGUF_NAMES = NameMap(
    (
        *GGUF_BODY,
        *GGUF_ATTENTION,
        *GGUF_FFN,
        *GGUF_MOE,
        *GGUF_SHARED,
        *GGUF_DELTA,
        rule("blk.{layer}.ssm_ba.weight", f"{_L}.ba"),
        rule("blk.{layer}.ssm_in.weight", f"{_L}.qkvz"),
    ),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    activation = fields.activation()
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("moe_intermediate_size"),
        router=Router(
            top_k=top_k_of(fields), renormalize=fields.flag("norm_topk_prob", default=True)
        ),
        activation=activation,
        shared=SharedExpert(fields.count("shared_expert_intermediate_size"), gated=True),
    )
    dense = Dense(fields.count("intermediate_size", moe.width), activation)
    mixers = mixers_of(
        fields,
        qkvz_by_head=not fields.flag("qkvz_apart", default=False),
        ba_by_head=True,
    )
    blocks = (moe if sparse else dense for sparse in sparse_layers(fields))
    plus_one = not fields.flag("norms_hold_one", default=False)
    return model_of(fields, "qwen3_next", map(LayerSpec, mixers, blocks), norm_plus_one=plus_one)
