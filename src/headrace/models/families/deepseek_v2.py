"""DeepSeek-V2 and V2-Lite: latent attention, softmax routing that may be limited to groups."""

from __future__ import annotations

from headrace.models.families.balanced import beside_of, feed_forward_of
from headrace.models.families.deepseek import latent_model, latent_of
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, Moe
from headrace.ops.table import Router


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    blocks = feed_forward_of(fields, _moe(fields))
    return latent_model(fields, "deepseek_v2", latent_of(fields), blocks)


def _moe(fields: Fields) -> Moe:
    fields.fixed(
        {"scoring_func": "softmax", "moe_layer_freq": 1, "ep_size": 1, "norm_topk_prob": False}
    )
    method = fields.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.error("topk_method", "greedy or group_limited_greedy")
    count, width = (
        fields.count("n_routed_experts", high=1 << 16),
        fields.count("moe_intermediate_size"),
    )
    groups = fields.divisor("n_group", count, 1)
    kept = fields.count("topk_group", 1, high=groups)
    limited = method == "group_limited_greedy"
    router = Router(
        top_k=fields.count(
            "num_experts_per_tok", high=count // groups * kept if limited else count
        ),
        groups=groups if limited else 1,
        keep_groups=kept if limited else 1,
        group_best=1,
        renormalize=False,
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    return Moe(
        experts=count,
        width=width,
        router=router,
        activation=fields.activation(),
        shared=beside_of(fields, "n_shared_experts", width),
    )
