"""A feed-forward block for every token, run as a single expert."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.models.spec import Dense
from headrace.models.tensors import Scope
from headrace.ops.table import Ops, Routing


class OneExpert:
    """Routing of every token to expert 0, with weight 1."""

    def __init__(self) -> None:
        self._of: dict[int, Routing] = {}

    def __call__(self, tokens: int) -> Routing:
        """Kept per token count: a step asks for the same in every layer, a tape for its own."""
        routing = self._of.get(tokens)
        if routing is None:
            ids = torch.zeros(tokens, 1, dtype=torch.int32)
            routing = self._of[tokens] = Routing(ids, torch.ones(tokens, 1))
        return routing


class DenseBlock:
    """down(act(gate x) * up x), or without up."""

    def __init__(self, spec: Dense, scope: Scope, ops: Ops, everyone: OneExpert) -> None:
        self._ops, self._everyone = ops, everyone
        self._rows = scope.mlp("dense", spec.activation)

    def __call__(self, x_TD: Tensor) -> Tensor:
        return self._ops.experts(x_TD, self._everyone(x_TD.shape[0]), self._rows)
