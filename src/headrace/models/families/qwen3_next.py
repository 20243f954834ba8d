"""Qwen3-Next and Qwen3-Coder-Next: as Qwen3.5, but one matrix has q, k, v and gate of all heads,
key head after key head, and another their decay and update rate.
"""

from __future__ import annotations

from headrace.models.families.common import ATTENTION, BODY, FFN, QK_NORM, model_of
from headrace.models.families.gguf import GGUF_RULES
from headrace.models.families.qwen import EXPERTS, SHARED, feed_forward_of, shared_of
from headrace.models.families.qwen3_5_moe import DELTA, GGUF_DELTA, mixers_of
from headrace.models.fields import Fields
from headrace.models.spec import LayerSpec, ModelSpec
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
        *EXPERTS,
        *SHARED,
    ),
    prefixes=("model.",),
    skipped=("mtp.",),
)
GGUF_NAMES = NameMap(
    (
        *GGUF_RULES,
        *GGUF_DELTA,
        rule("blk.{layer}.ssm_ba.weight", f"{_L}.ba"),
        rule("blk.{layer}.ssm_in.weight", f"{_L}.qkvz"),
    ),
)


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    mixers = mixers_of(
        fields,
        qkvz_by_head=not fields.flag("qkvz_apart", default=False),
        ba_by_head=True,
    )
    shared = shared_of(fields)
    width = fields.count("moe_intermediate_size")
    blocks = feed_forward_of(fields, renormalize=True, shared=shared, dense_width=width)
    plus_one = not fields.flag("norms_hold_one", default=False)
    return model_of(fields, "qwen3_next", map(LayerSpec, mixers, blocks), norm_plus_one=plus_one)
