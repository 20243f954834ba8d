"""A mixture of experts: router, routed experts wherever they lie, shared expert beside them."""

from __future__ import annotations

from torch import Tensor

from headrace.models.dense import OneExpert
from headrace.models.spec import Moe
from headrace.models.state import Experts
from headrace.models.tensors import Scope
from headrace.ops.table import Ops, Routing


class MoeBlock:
    """One layer's experts; `layer` is its number, by which `experts` finds the rows."""

    def __init__(self, layer: int, spec: Moe, scope: Scope, ops: Ops, everyone: OneExpert) -> None:
        self._layer, self._spec, self._ops, self._everyone = layer, spec, ops, everyone
        self._router = scope.linear("router", bias=spec.router_bias, exact=True)
        self._correction = scope.vector("correction_bias") if spec.correction_bias else None
        shared = spec.shared
        self._shared = scope.mlp("shared", spec.activation) if shared else None
        self._gate = scope.linear("shared_gate") if shared and shared.gated else None

    def route(self, x_TD: Tensor) -> Routing:
        """What this layer's router chooses for such inputs."""
        logits_TE = self._ops.linear(x_TD, self._router)
        return self._ops.route(logits_TE, self._correction, self._spec.router)

    def __call__(self, x_TD: Tensor, experts: Experts) -> Tensor:
        routing = self.route(x_TD)
        y_TD = experts(self._layer, x_TD, routing)
        if self._shared is None:
            return y_TD
        chosen = self._everyone(x_TD.shape[0])
        if self._gate is not None:
            weight_T1 = self._ops.sigmoid(self._ops.linear(x_TD, self._gate))
            chosen = Routing(chosen.ids_TX, weight_T1)
        self._ops.add(y_TD, self._ops.experts(x_TD, chosen, self._shared))
        return y_TD
