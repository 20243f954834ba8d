"""What Qwen's families share: softmax routing, a shared expert with a gate of its own, and which
layers are dense.
"""

from __future__ import annotations

from headrace.models.families.common import KINDS, experts_of, layers_of, per_expert, top_k_of
from headrace.models.fields import Fields
from headrace.models.spec import Dense, Ffn, Moe, SharedExpert
from headrace.ops.table import Router
from headrace.weights.names import rule

_L = "layers.{layer}"
EXPERTS = (
    *per_expert(f"{_L}.mlp.experts.{{expert}}", *(f"{n}_proj" for n in KINDS)),
    rule(f"{_L}.mlp.gate.weight", f"{_L}.router"),
)
SHARED = (
    *(rule(f"{_L}.mlp.shared_expert.{n}_proj.weight", f"{_L}.shared.{n}") for n in KINDS),
    rule(f"{_L}.mlp.shared_expert_gate.weight", f"{_L}.shared_gate"),
)


def shared_of(fields: Fields) -> SharedExpert:
    return SharedExpert(fields.count("shared_expert_intermediate_size"), gated=True)


def feed_forward_of(
    fields: Fields,
    *,
    renormalize: bool = False,
    shared: SharedExpert | None = None,
    dense_width: int | None = None,
) -> list[Ffn]:
    """Of each layer: experts in each `decoder_sparse_step`-th that is not in `mlp_only_layers`.
    `renormalize`: where `norm_topk_prob` is absent; `dense_width`: where `intermediate_size` is.
    """
    moe = Moe(
        experts=experts_of(fields),
        width=fields.count("moe_intermediate_size"),
        router=Router(
            top_k=top_k_of(fields), renormalize=fields.flag("norm_topk_prob", default=renormalize)
        ),
        activation=fields.activation(),
        shared=shared,
    )
    dense = Dense(fields.count("intermediate_size", dense_width), moe.activation)
    every = fields.count("decoder_sparse_step", 1)
    plain = fields.counts("mlp_only_layers")
    return [dense if i in plain or (i + 1) % every else moe for i in range(layers_of(fields))]
