"""The bank: every routed expert in host memory. It is the only truth; all else is a copy that may
vanish.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.ops.table import ExpertRows
from headrace.planning.facts import ModelFacts


class ExpertBank:
    """Experts of every layer; a dense layer has none."""

    def __init__(self, rows: Sequence[ExpertRows | None], facts: ModelFacts) -> None:
        assert len(rows) == facts.layers
        self._rows = tuple(rows)
        self._facts = facts

    def rows(self, layer: int) -> ExpertRows:
        """The experts of a MoE layer."""
        rows = self._rows[layer]
        assert rows is not None, f"layer {layer} is dense"
        return rows

    def row_bytes(self, layer: int) -> int:
        """Bytes of one expert of this layer, 0 where it is dense."""
        return self._facts.expert_bytes[layer]

    @property
    def total_bytes(self) -> int:
        per_layer = zip(self._facts.experts, self._facts.expert_bytes, strict=True)
        return sum(count * nbytes for count, nbytes in per_layer)
