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
    """`expert_rows`: the routed experts of each layer where they lie, None for a dense layer."""

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
) -> LoadedModel:
    """Waits for `reading` (or reads now) and builds the model over the bytes where they lie.

    `progress(done bytes, total bytes)` is called about twenty times a second. Raises
    CheckpointError.
    """
    reading = reading or source.read()
    reading.wait(progress)
    spec = source.spec
    scope = Scope(tensors_of(source.plan, reading))
    transformer = Transformer(spec, scope, ops)
    rows = tuple(
        scope.within(f"layers.{i}").experts(layer.ffn) if isinstance(layer.ffn, Moe) else None
        for i, layer in enumerate(spec.layers)
    )
    return LoadedModel(spec, source.facts, transformer, rows)
