"""What families with DeepSeek-V3's routing share: sigmoid scores, a bias that balances the choice,
shared experts beside the routed ones, and dense layers before those with experts.
"""

from __future__ import annotations

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    KINDS,
    QK_NORM,
    layers_of,
    per_expert,
)
from headrace.models.fields import Fields
from headrace.models.spec import Dense, Ffn, Moe, SharedExpert
from headrace.ops.table import Activation, Router, Score
from headrace.weights.names import NameMap, Rule, rule

_L = "layers.{layer}"
EPS = 1e-20  # added to the sum by which weights are divided
DENSE, SPARSE = "dense", "sparse"


def experts_named(
    *,
    router: str = "gate.weight",
    bias: str | None = "gate.e_score_correction_bias",
    shared: str = "shared_experts",
) -> tuple[Rule, ...]:
    """The tensors of a layer's experts, under `layers.N.mlp.`."""
    at = f"{_L}.mlp"
    return (
        *per_expert(f"{at}.experts.{{expert}}", *(f"{n}_proj" for n in KINDS)),
        *(rule(f"{at}.{shared}.{n}_proj.weight", f"{_L}.shared.{n}") for n in KINDS),
        rule(f"{at}.{router}", f"{_L}.router"),
        *([] if bias is None else [rule(f"{at}.{bias}", f"{_L}.correction_bias")]),
    )


NAMES = NameMap((*BODY, *ATTENTION, *QK_NORM, *FFN, *experts_named()), prefixes=("model.",))


def moe_of(
    fields: Fields,
    *,
    experts: str = "n_routed_experts",
    shared: str = "n_shared_experts",
    width: str = "moe_intermediate_size",
    scale: str = "routed_scaling_factor",
    activation: Activation | None = None,
    renormalize: bool = True,
) -> Moe:
    """From the keys of this kind of config; the names of some differ. `renormalize`: where
    `norm_topk_prob` is absent.
    """
    count, own_width = fields.count(experts, high=1 << 16), fields.count(width)
    groups = fields.divisor("n_group", count, 1)
    for key, known in (
        ("scoring_func", ("sigmoid", "noaux_tc")),
        ("topk_method", ("noaux_tc",)),
        ("ep_size", (1,)),
    ):
        if fields.get(key, known[0]) not in known:
            raise fields.error(key, " or ".join(map(str, known)))
    router = Router(
        top_k=fields.count("num_experts_per_tok", high=count),
        score=Score.SIGMOID,
        groups=groups,
        keep_groups=fields.count("topk_group", 1, high=groups),
        renormalize=fields.flag("norm_topk_prob", default=renormalize),
        renorm_eps=EPS,
        scale=fields.number(scale, 1.0),
    )
    if router.top_k > count // groups * router.keep_groups:
        raise fields.error("num_experts_per_tok", "no more than the experts of the groups kept")
    return Moe(
        experts=count,
        width=own_width,
        router=router,
        activation=fields.activation() if activation is None else activation,
        correction_bias=True,
        shared=beside_of(fields, shared, own_width),
    )


def beside_of(fields: Fields, key: str, width: int) -> SharedExpert | None:
    """As many shared experts as `key` says, of `width` channels each, as one."""
    count = fields.count(key, 0, low=0, high=64)
    return SharedExpert(count * width, gated=False) if count else None


def feed_forward_of(
    fields: Fields, moe: Moe, *, first: int = 0, key: str = "first_k_dense_replace"
) -> list[Ffn]:
    """Of each layer: `mlp_layer_types`, or 1 in `moe_layer_freq`, or as many dense ones in front as
    `key` says (`first` where that is absent, too).
    """
    count = layers_of(fields)
    kinds = fields.words("mlp_layer_types", count, (DENSE, SPARSE)) or _listed(fields, count)
    before = fields.count(key, min(first, count), low=0, high=count)
    kinds = kinds or tuple(DENSE if i < before else SPARSE for i in range(count))
    if DENSE not in kinds:
        fields.get("intermediate_size")
        return [moe] * count
    dense = Dense(fields.count("intermediate_size"), moe.activation)
    return [dense if kind == DENSE else moe for kind in kinds]


def _listed(fields: Fields, count: int) -> tuple[str, ...] | None:
    every = fields.get("moe_layer_freq", 1)
    if every == 1:
        return None
    if not isinstance(every, list) or len(every) != count or any(n not in (0, 1) for n in every):
        raise fields.error("moe_layer_freq", f"1, or 0 or 1 for each of {count} layers")
    return tuple(SPARSE if n else DENSE for n in every)
