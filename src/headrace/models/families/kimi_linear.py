"""Kimi-Linear: Kimi Delta Attention, and latent attention without rotation every few layers."""

from __future__ import annotations

from dataclasses import replace

from headrace.models.families.balanced import feed_forward_of, moe_of
from headrace.models.families.common import BODY, FFN, KINDS, layers_of, model_of
from headrace.models.families.deepseek import LATENT, latent_of
from headrace.models.families.mixtral import EXPERTS
from headrace.models.fields import Fields
from headrace.models.spec import ChannelDelta, LayerSpec, ModelSpec
from headrace.weights.names import Layout, NameMap, rule

_L = "layers.{layer}"
_A, _B = f"{_L}.self_attn", f"{_L}.block_sparse_moe"
NAMES = NameMap(
    (
        *BODY,
        *LATENT,
        *(rule(f"{_A}.{n}_proj.weight", f"{_L}.{n}") for n in ("k", "v", "b")),
        *(rule(f"{_A}.{n}_proj.weight", f"{_L}.{n}") for n in ("f_a", "f_b", "g_a", "g_b")),
        *(
            rule(f"{_A}.{n}_conv1d.weight", f"{_L}.conv_{n}", layouts=(Layout.DROP_MIDDLE,))
            for n in "qkv"
        ),
        rule(f"{_A}.A_log", f"{_L}.a_log", layouts=(Layout.FLATTEN,)),
        rule(f"{_A}.dt_bias", f"{_L}.dt_bias", layouts=(Layout.FLATTEN,)),
        rule(f"{_A}.o_norm.weight", f"{_L}.delta_norm"),
        *FFN,
        *EXPERTS,
        *(rule(f"{_B}.shared_experts.{n}_proj.weight", f"{_L}.shared.{n}") for n in KINDS),
        rule(f"{_B}.gate.e_score_correction_bias", f"{_L}.correction_bias"),
    ),
    prefixes=("model.",),
)
_SPELLED = {
    "max_position_embeddings": "model_max_length",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "norm_topk_prob": "moe_renormalize",
    "num_experts_per_tok": "num_experts_per_token",
    "scoring_func": "moe_router_activation_func",
}
_DELTA, _LATENT = "linear_attention", "full_attention"


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    fields.respell(_SPELLED)
    fields.skip("use_grouped_topk", "rope_theta")
    if not fields.flag("mla_use_nope", default=True):
        raise fields.error("mla_use_nope", "true")
    table = fields.table("linear_attn_config") or Fields({}, "linear_attn_config")
    delta = ChannelDelta(
        heads=table.count("num_heads", fields.get("linear_num_heads")),
        head_dim=table.count("head_dim", fields.get("linear_head_dim")),
        kernel=table.count(
            "short_conv_kernel_size", fields.get("linear_conv_kernel_dim", 4), low=2
        ),
    )
    latent = replace(latent_of(fields), turned=False)
    kinds = _kinds(fields, table)
    table.finish()
    blocks = feed_forward_of(fields, moe_of(fields), first=1)
    layers = [
        LayerSpec(latent if kind == _LATENT else delta, block)
        for kind, block in zip(kinds, blocks, strict=True)
    ]
    return model_of(fields, "kimi_linear", layers)


def _kinds(fields: Fields, table: Fields) -> tuple[str, ...]:
    """Of each layer: `layer_types`, or the table's numbers of layers, which begin at 1."""
    count = layers_of(fields)
    kinds = fields.words("layer_types", count, (_DELTA, _LATENT))
    full, rest = set(table.counts("full_attn_layers")), set(table.counts("kda_layers"))
    if kinds is not None:
        return kinds
    if full & rest or full | rest != set(range(1, count + 1)):
        raise table.error("kda_layers", f"all layers from 1 to {count} but those of full attention")
    return tuple(_LATENT if i + 1 in full else _DELTA for i in range(count))
