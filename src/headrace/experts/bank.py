"""The bank: every routed expert in host memory. It is the only truth; all else is a copy that may
vanish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from torch import Tensor

from headrace.experts.layout import RowLayout, layout_of
from headrace.formats.packed import bytes_of
from headrace.ops.table import ExpertRows
from headrace.planning.facts import ModelFacts


class ExpertBank:
    """Experts of every layer; a dense layer has none."""

    def __init__(
        self,
        rows: Sequence[ExpertRows | None],
        facts: ModelFacts,
        entries: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """`entries`: of layers whose rows are slots for any expert, by expert an entry that looks
        as it does; else an expert's entry is its number.
        """
        assert len(rows) == facts.layers
        self._rows = tuple(rows)
        self._facts = facts
        self._entries = entries or {}

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """The layers that have routed experts, in order."""
        return tuple(i for i, rows in enumerate(self._rows) if rows is not None)

    def rows(self, layer: int) -> ExpertRows:
        """The experts of a MoE layer."""
        rows = self._rows[layer]
        assert rows is not None, f"layer {layer} is dense"
        return rows

    def row_bytes(self, layer: int) -> int:
        """Bytes of one expert of this layer, on average, 0 where it is dense."""
        return self._facts.expert_bytes[layer]

    @property
    def total_bytes(self) -> int:
        per_layer = zip(self._facts.experts, self._facts.expert_bytes, strict=True)
        return sum(count * nbytes for count, nbytes in per_layer)

    @cached_property
    def layouts(self) -> dict[int, RowLayout]:
        """How the rows of each MoE layer lie on the host, and how they will lie in a slot."""
        made: dict[int, RowLayout] = {}  # layers of slots that look alike have the same rows
        for layer in self.moe_layers:
            rows = self.rows(layer)
            if id(rows) not in made:
                made[id(rows)] = layout_of(rows)
        return {layer: made[id(self.rows(layer))] for layer in self.moe_layers}

    def form_of(self, layer: int) -> tuple[int, ...]:
        """Of each expert, which form of its layer's layout it has."""
        form_of = self.layouts[layer].form_of
        return tuple(form_of[i] for i in self._entries.get(layer, range(len(form_of))))

    @cached_property
    def slot_bytes(self) -> int:
        """A slot that holds a row of any layer."""
        return max((layout.nbytes for layout in self.layouts.values()), default=0)


def tensors_of(rows: ExpertRows, expert: int) -> list[Tensor]:
    """Every tensor of one expert, packed ones as their bytes: its row."""
    kinds = (rows.gate, rows.up, rows.down, rows.gate_bias, rows.up_bias, rows.down_bias)
    return [bytes_of(kind[expert]) for kind in kinds if kind]
