"""Hunyuan A13B: q and k are normalised behind their rotation, whose base is stretched by alpha."""

from __future__ import annotations

from collections.abc import Callable

from headrace.models.families.balanced import experts_named
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    attention_of,
    layers_of,
    model_of,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import LayerSpec, ModelSpec, Moe, QkNorm, SharedExpert
from headrace.ops.table import Router
from headrace.weights.names import NameMap, rule

_A = "layers.{layer}.self_attn"
NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        rule(f"{_A}.query_layernorm.weight", "layers.{layer}.q_norm"),
        rule(f"{_A}.key_layernorm.weight", "layers.{layer}.k_norm"),
        *experts_named(router="gate.wg.weight", bias=None, shared="shared_mlp"),
    ),
    prefixes=("model.",),
)
# Of vision, of training, of layouts that are not used, and of tokens.
_NO_PART = (
    "anyres_pooling_size", "anyres_vit_max_image_size", "class_num", "cla_share_factor",
    "dense_list", "eod_token_id", "im_end_id", "im_newline_id", "im_start_id", "image_token_id",
    "mask_init_id", "moe_drop_tokens", "moe_random_routing_dropped_token", "num_media_embeds",
    "org_vocab_size", "pad_id", "pool_type", "sep_token_id", "text_end_id", "text_start_id",
    "video_end_id", "video_start_id",
)  # fmt: skip
# Published as here; anything else is another model.
_FIXED = {
    "use_qk_norm": True, "use_mixed_mlp_moe": True, "use_rotary_pos_emb": True,
    "norm_type": "rms", "norm_topk_prob": True, "moe_layer_num_skipped": 0,
}  # fmt: skip


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published; some numbers are lists of one for each layer."""
    fields.fixed(_FIXED)
    fields.skip(*_NO_PART)
    experts = _same(fields, "num_experts")
    width = _same(fields, "moe_intermediate_size", lambda: fields.count("intermediate_size"))
    beside = _same(fields, "num_shared_expert", lambda: 1)
    fields.get("intermediate_size")
    moe = Moe(
        experts=experts,
        width=width,
        router=Router(top_k=_same(fields, "moe_topk", most=experts)),
        activation=fields.activation(),
        shared=SharedExpert(beside * width, gated=False),
    )
    head_dim = fields.count(
        "head_dim",
        fields.count(
            "attention_head_dim", fields.count("hidden_size") // fields.count("num_attention_heads")
        ),
    )
    mixer = attention_of(
        fields,
        head_dim=head_dim,
        value_dim=head_dim,
        scale=head_dim**-0.5,
        rope=read_rope(fields, head_dim, theta=10_000.0),
        qk_norm=QkNorm.HEAD,
        rotate_first=True,
    )
    return model_of(fields, "hunyuan_v1_moe", [LayerSpec(mixer, moe)] * layers_of(fields))


def _same(
    fields: Fields, key: str, otherwise: Callable[[], int] | None = None, *, most: int = 1 << 20
) -> int:
    """A number for all layers, or one for each, which are then the same."""
    value = fields.get(key)
    if isinstance(value, list):
        listed = set(fields.counts(key))
        if len(listed) != 1 or not 0 < (number := listed.pop()) <= most:
            raise fields.error(key, f"the same number for all layers, at most {most}")
        return number
    return otherwise() if value is None and otherwise else fields.count(key, high=most)
