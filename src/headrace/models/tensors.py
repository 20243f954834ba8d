"""Canonical tensors of a layer as what the ops take: linear maps, vectors, experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.formats.packed import Packed, Weight, decode
from headrace.models.spec import Moe
from headrace.ops.table import Activation, ExpertRows, Linear
from headrace.weights.views import Tensors

KINDS = ("gate", "up", "down")


@dataclass(frozen=True, slots=True)
class Scope:
    """Tensors whose names start with `prefix`."""

    tensors: Tensors
    prefix: str = ""

    def within(self, prefix: str) -> Scope:
        return Scope(self.tensors, f"{self.prefix}{prefix}.")

    def matrix(self, name: str) -> Weight:
        """As stored."""
        (tensor,) = self.tensors[self.prefix + name]
        return tensor

    def vector(self, name: str) -> Tensor:
        """float32 and dense, of any rank: norms, biases, filters."""
        return decode(self.matrix(name)).contiguous()

    def linear(self, *names: str, bias: bool = False, exact: bool = False) -> Linear:
        """One map whose outputs are those of the named ones side by side."""
        parts = [self.matrix(name) for name in names]
        joined = torch.cat([self.vector(f"{name}.bias") for name in names]) if bias else None
        return Linear(tuple(parts), joined, exact)

    def mlp(self, stem: str, activation: Activation) -> ExpertRows:
        """A dense block as a single expert."""
        gate, up, down = (
            [self.matrix(f"{stem}.{kind}")] if kind != "up" or activation.has_up else ()
            for kind in KINDS
        )
        return ExpertRows(gate, up, down, activation)

    def experts(self, moe: Moe) -> ExpertRows:
        """The routed experts of this layer."""
        gate, up, down = (
            self._stack(f"experts.{kind}") if kind != "up" or moe.activation.has_up else ()
            for kind in KINDS
        )
        return replace(self.frame(moe), gate=gate, up=up, down=down)

    def frame(self, moe: Moe) -> ExpertRows:
        """All of the routed experts but their weights."""
        if not moe.expert_bias:
            return ExpertRows((), (), (), moe.activation, alpha=moe.alpha, limit=moe.limit)
        stacks = [self._stack(f"experts.{kind}.bias") for kind in KINDS]
        gate_bias, up_bias, down_bias = (
            [decode(b).contiguous() for b in stack] for stack in stacks
        )
        return ExpertRows(
            (), (), (), moe.activation, gate_bias, up_bias, down_bias, moe.alpha, moe.limit
        )

    def _stack(self, name: str) -> list[Weight]:
        """One tensor per expert, whether the file stores them together or apart."""
        pieces = self.tensors[self.prefix + name]
        first = pieces[0]
        if isinstance(first, Packed) or first.dim() != (2 if name.endswith(".bias") else 3):
            return list(pieces)
        return list(first.unbind(0))
