"""What planning needs to know of a model, from its spec and its file headers. No torch."""

from __future__ import annotations

from headrace.models.spec import Attention, LayerSpec, ModelSpec, Moe
from headrace.planning.facts import KvNeed, ModelFacts, RecurrentNeed, StateNeed
from headrace.weights.plan import WeightPlan


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
        expert_bytes=tuple(_expert_bytes(plan, i, moe) if moe else 0 for i, moe in enumerate(moes)),
        total_bytes=plan.total_bytes,
        dtype=plan.bytes_by_format().most_common(1)[0][0],
        embedding_bytes=0 if spec.tied else plan.nbytes("embed"),
    )


def _state(layer: LayerSpec) -> StateNeed:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return KvNeed(
            mixer.kv_heads * mixer.head_dim,
            mixer.kv_heads * mixer.value_dim,
            mixer.window or None,
            mixer.kv_heads,
        )
    return RecurrentNeed(
        (mixer.value_heads, mixer.key_dim, mixer.value_dim), (mixer.channels, mixer.kernel - 1)
    )


def _expert_bytes(plan: WeightPlan, layer: int, moe: Moe) -> int:
    names = [f"layers.{layer}.experts.{kind}" for kind in ("gate", "up", "down")]
    if moe.expert_bias:
        names += [f"{name}.bias" for name in names]
    return sum(plan.nbytes(name) for name in names) // moe.experts
