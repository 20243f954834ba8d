"""Command A with experts: attention and experts see one norm of the same input, windows with
rotation of neighbouring channels, whole layers without.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.models.families.balanced import DENSE, SPARSE, beside_of, experts_named
from headrace.models.families.common import (
    ATTENTION,
    BODY,
    FFN,
    WHOLE,
    WINDOW,
    attention_of,
    experts_of,
    head_dim_of,
    layers_of,
    model_of,
    top_k_of,
)
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import (
    Attention,
    Dense,
    Ffn,
    LayerSpec,
    ModelSpec,
    Moe,
    NormKind,
)
from headrace.ops.table import Router, Score
from headrace.weights.names import NameMap

NAMES = NameMap((*BODY, *ATTENTION, *FFN, *experts_named(bias=None)), prefixes=("model.",))


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    blocks = _blocks(fields)
    mixers = _mixers(fields, [isinstance(block, Dense) for block in blocks])
    rms = fields.get("rms_norm_eps") is not None
    fields.get("layer_norm_eps")
    return model_of(
        fields,
        "cohere2_moe",
        (LayerSpec(m, block, parallel=True) for m, block in zip(mixers, blocks, strict=True)),
        eps="rms_norm_eps" if rms else "layer_norm_eps",
        tied=True,
        norm=NormKind.RMS if rms else NormKind.LAYER,
        logit_scale=fields.number("logit_scale", 0.0625),
    )


def _blocks(fields: Fields) -> list[Ffn]:
    count, width = layers_of(fields), fields.count("intermediate_size")
    activation = fields.activation()
    first = fields.count("first_k_dense_replace", 0, low=0, high=count)
    kinds = fields.words("mlp_layer_types", count, (DENSE, SPARSE))
    kinds = kinds or tuple(DENSE if i < first else SPARSE for i in range(count))
    score = fields.get("expert_selection_fn", "softmax")
    joined = fields.get("shared_expert_combination_strategy", "average")
    if score not in ("softmax", "sigmoid"):
        raise fields.error("expert_selection_fn", "softmax or sigmoid")
    if joined not in ("average", "sum"):
        raise fields.error("shared_expert_combination_strategy", "average or sum")
    normed = fields.flag("norm_topk_prob", default=True)
    shared = beside_of(fields, "num_shared_experts", width)
    chosen = score == "softmax"
    moe = Moe(
        experts=experts_of(fields),
        width=width,
        router=Router(
            top_k=top_k_of(fields, 2),
            score=Score.SOFTMAX_OF_TOP_K if chosen else Score.SIGMOID,
            renormalize=normed and not chosen,
        ),
        activation=activation,
        shared=shared,
        average_shared=shared is not None and joined == "average",
    )
    dense = fields.count("prefix_dense_intermediate_size", width)
    return [Dense(dense, activation) if kind == DENSE else moe for kind in kinds]


def _mixers(fields: Fields, dense: list[bool]) -> list[Attention]:
    """Of each layer, of which so many are dense in front."""
    count, first = layers_of(fields), sum(dense)
    early = fields.count("prefix_dense_sliding_window_pattern", 1)
    late = fields.count("sliding_window_pattern", 4)
    kinds = fields.words("layer_types", count, (WINDOW, WHOLE)) or tuple(
        WINDOW if near else WHOLE
        for near in (
            *((i + 1) % early for i in range(first)),
            *((i + 1) % late for i in range(count - first)),
        )
    )
    rope = replace(read_rope(fields, head_dim_of(fields), theta=10_000.0), interleaved=True)
    window = fields.count("sliding_window", 4096)

    def mixer(kind: str, *, turns: bool) -> Attention:
        return attention_of(
            fields, rope=rope if turns else None, window=window if kind == WINDOW else 0
        )

    return [
        mixer(kind, turns=kind == WINDOW or (plain and early == 1))
        for kind, plain in zip(kinds, dense, strict=True)
    ]
