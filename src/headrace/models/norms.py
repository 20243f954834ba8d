"""Norms of the residual stream: one kind a model, a weight each."""

from __future__ import annotations

from torch import Tensor

from headrace.models.spec import ModelSpec, NormKind
from headrace.models.tensors import Scope
from headrace.ops.table import Ops


class Norm:
    """One norm, and the weight that it multiplies by: `weight_D` has the one it may add to it."""

    def __init__(self, model: ModelSpec, name: str, scope: Scope, ops: Ops) -> None:
        self._model, self._ops = model, ops
        self._stored_D = scope.vector(name)

    @property
    def weight_D(self) -> Tensor:
        return self._stored_D + int(self._model.norm_plus_one)

    def __call__(self, x_TD: Tensor) -> Tensor:
        model, ops = self._model, self._ops
        if model.norm == NormKind.RMS:
            return ops.rms_norm(x_TD, self._stored_D, model.eps, plus_one=model.norm_plus_one)
        return ops.layer_norm(x_TD, self._stored_D, None, model.eps)
