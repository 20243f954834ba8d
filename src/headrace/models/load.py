"""From files to a model that can compute."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec, Moe
from headrace.models.tensors import Scope
from headrace.models.transformer import Transformer
from headrace.ops.table import ExpertRows, Ops
from headrace.planning.facts import ModelFacts
from headrace.weights.loader import Progress, Reading
from headrace.weights.views import tensors_of


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`expert_rows`: the routed experts of each layer where they lie, None for a dense layer; all
    but their weights where those are read by themselves.
    """

    spec: ModelSpec
    facts: ModelFacts
    transformer: Transformer
    expert_rows: tuple[ExpertRows | None, ...]


def load_model(
    source: ModelSource,
    ops: Ops,
    *,
    reading: Reading | None = None,
    progress: Progress | None = None,
    rows: bool = True,
) -> LoadedModel:
    """Waits for `reading` (or reads now) and builds the model over the bytes where they lie.
    `rows`: whether that is with the weights of routed experts.

    `progress(done bytes, total bytes)` is called about twenty times a second. Raises
    CheckpointError.
    """
    reading = reading or source.read(rows=rows)
    reading.wait(progress)
    spec = source.spec
    scope = Scope(tensors_of(source.plan if rows else source.beside_rows, reading))
    transformer = Transformer(spec, scope, ops)
    experts: list[ExpertRows | None] = []
    for i, layer in enumerate(spec.layers):
        own = scope.within(f"layers.{i}")
        moe = layer.ffn if isinstance(layer.ffn, Moe) else None
        experts.append(None if moe is None else own.experts(moe) if rows else own.frame(moe))
    return LoadedModel(spec, source.facts, transformer, tuple(experts))
