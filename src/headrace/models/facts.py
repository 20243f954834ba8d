"""What planning needs to know of a model, from its spec and its file headers. No torch."""

from __future__ import annotations

from collections.abc import Callable

from headrace.models.spec import (
    Attention,
    ChannelDelta,
    DeltaRule,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    Moe,
    Ssm,
)
from headrace.planning.facts import KvNeed, ModelFacts, RecurrentNeed, StateNeed
from headrace.weights.plan import WeightPlan
from headrace.weights.rows import row_names

LINE = 64


def facts_of(spec: ModelSpec, plan: WeightPlan) -> ModelFacts:
    """Counts and bytes; nothing but headers has been read."""
    moes = [layer.ffn if isinstance(layer.ffn, Moe) else None for layer in spec.layers]
    return ModelFacts(
        family=spec.family,
        layers=len(spec.layers),
        hidden=spec.hidden,
        vocab=spec.vocab,
        max_context=spec.max_context,
        state=tuple(_state(layer) for layer in spec.layers),
        experts=tuple(moe.experts if moe else 0 for moe in moes),
        top_k=tuple(moe.router.top_k if moe else 0 for moe in moes),
        expert_bytes=tuple(
            _row(plan, i, moe, plan.nbytes) if moe else 0 for i, moe in enumerate(moes)
        ),
        total_bytes=sum(plan.nbytes(name) for name in plan.pieces),
        dtype=plan.bytes_by_format().most_common(1)[0][0],
        embedding_bytes=0 if spec.tied else plan.nbytes("embed"),
        dense_weights=_dense_weights(spec, plan),
        expert_weights=tuple(
            _row(plan, i, moe, plan.weights) if moe else 0 for i, moe in enumerate(moes)
        ),
        widest_row=max((_widest(plan, i, moe) for i, moe in enumerate(moes) if moe), default=0),
    )


def _state(layer: LayerSpec) -> StateNeed | None:
    mixer = layer.mixer
    if mixer is None:
        return None
    if isinstance(mixer, Attention):
        return KvNeed(
            mixer.kv_heads * mixer.head_dim,
            mixer.kv_heads * mixer.value_dim,
            mixer.window or None,
            mixer.kv_heads,
        )
    if isinstance(mixer, LatentAttention):
        work = 2 * mixer.heads * (mixer.width + mixer.rank)
        return KvNeed(mixer.width, 0, latent=mixer.rank, work=work)
    matrix = None
    if isinstance(mixer, DeltaRule):
        matrix = mixer.value_heads, mixer.key_dim, mixer.value_dim
    if isinstance(mixer, ChannelDelta):
        matrix = mixer.heads, mixer.head_dim, mixer.head_dim
    if isinstance(mixer, Ssm):
        matrix = mixer.heads, mixer.state, mixer.head_dim
    return RecurrentNeed(matrix, (mixer.channels, mixer.kernel - 1))


def _row(plan: WeightPlan, layer: int, moe: Moe, count: Callable[[str], int]) -> int:
    """What `count` says of the tensors of one expert."""
    return -(-sum(count(name) for name in _names(layer, moe)) // moe.experts)


def _widest(plan: WeightPlan, layer: int, moe: Moe) -> int:
    """Bytes in a slot, where every tensor starts on a cache line."""
    rows = [0] * moe.experts
    for name in _names(layer, moe):
        for expert, nbytes in enumerate(plan.nbytes_of_each(name, moe.experts)):
            rows[expert] += -(-nbytes // LINE) * LINE
    return max(rows)


def _names(layer: int, moe: Moe) -> list[str]:
    """Of all tensors of the routed experts."""
    ends = ("", ".bias") if moe.expert_bias else ("",)
    kept = [n for n in row_names(layer) if moe.activation.has_up or not n.endswith(".up")]
    return [f"{name}{end}" for name in kept for end in ends]


def _dense_weights(spec: ModelSpec, plan: WeightPlan) -> int:
    """Of all that meets every token of a prompt: no routed expert, no embedding of its own."""
    gone = {
        name
        for i, layer in enumerate(spec.layers)
        if isinstance(layer.ffn, Moe)
        for name in _names(i, layer.ffn)
    }
    gone |= set() if spec.tied else {"embed"}
    return sum(plan.weights(name) for name in plan.pieces if name not in gone)
