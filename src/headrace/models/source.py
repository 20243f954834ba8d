"""A model that has been looked at but not read: spec, facts, and the plan of its bytes. No torch.

`open_model` then `ModelSource.read` start the disk while torch is still being imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import CheckpointError
from headrace.models.facts import facts_of
from headrace.models.needs import needs_of
from headrace.models.registry import check_architecture, family_of
from headrace.models.spec import ModelSpec
from headrace.planning.facts import ModelFacts
from headrace.weights.checkpoint import CANONICAL, Checkpoint
from headrace.weights.loader import Reading
from headrace.weights.names import canonical_names
from headrace.weights.open import open_checkpoint
from headrace.weights.plan import WeightPlan, plan_weights
from headrace.weights.rows import RowSource, rows_of, without_rows


@dataclass(frozen=True, slots=True)
class ModelSource:
    """All of a checkpoint that its config and headers tell."""

    checkpoint: Checkpoint
    spec: ModelSpec
    plan: WeightPlan
    facts: ModelFacts

    def read(self, *, rows: bool = True) -> Reading:
        """Starts reading all weights in the background; without `rows`, all but experts."""
        return Reading(self.plan if rows else self.beside_rows)

    @property
    def beside_rows(self) -> WeightPlan:
        """All weights but those of routed experts."""
        return without_rows(self.plan, self.facts.experts)

    def rows(self) -> RowSource:
        """Where the routed experts lie. Raises CheckpointError where they cannot be read alone."""
        return rows_of(self.plan, self.facts.experts)


def open_model(path: Path) -> ModelSource:
    """Checks config and headers in full. Raises CheckpointError."""
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        check_architecture(path)  # who downloads what is missing should be served then
        raise
    family, spec = family_of(checkpoint)
    needs = needs_of(spec)
    own = checkpoint.dialect == CANONICAL
    names = canonical_names(needs) if own else family.names[checkpoint.dialect]
    count = len(spec.layers)
    names = names.without(f"layers.{i}." for i in range(count, count + spec.ahead))
    spare = frozenset({"head"}) if spec.tied else frozenset[str]()
    plan = plan_weights(checkpoint, names, needs, spare)
    return ModelSource(checkpoint, spec, plan, facts_of(spec, plan))
