"""A mixture of experts: router, routed experts wherever they lie, shared expert beside them."""

from __future__ import annotations

from torch import Tensor

from headrace.models.dense import DenseBlock, OneExpert
from headrace.models.norms import Norm
from headrace.models.spec import ModelSpec, Moe
from headrace.models.state import Experts
from headrace.models.tensors import Scope
from headrace.ops.table import Ops, Routing


class MoeBlock:
    """One layer's experts; `layer` is its number, by which `experts` finds the rows."""

    def __init__(self, layer: int, spec: Moe, scope: Scope, ops: Ops, everyone: OneExpert) -> None:
        self._layer, self._spec, self._ops, self._everyone = layer, spec, ops, everyone
        self._router = scope.linear("router", bias=spec.router_bias, exact=True)
        self._correction = scope.vector("correction_bias") if spec.correction_bias else None
        self._scales = scope.vector("expert_scales") if spec.expert_scales else None
        shared = spec.shared
        self._shared = scope.mlp("shared", spec.activation) if shared else None
        self._gate = scope.linear("shared_gate") if shared and shared.gated else None
        self._norm = scope.vector("sum_norm") if spec.sum_eps else None

    def route(self, x_TD: Tensor) -> Routing:
        """What this layer's router chooses for such inputs."""
        logits_TE = self._ops.linear(x_TD, self._router)
        if self._spec.logit_cap:
            self._ops.scale(logits_TE, 1.0, cap=self._spec.logit_cap)
        return self._ops.route(logits_TE, self._correction, self._spec.router, self._scales)

    def __call__(self, x_TD: Tensor, experts: Experts) -> Tensor:
        return self.run(x_TD, self.route(x_TD), experts)

    def run(self, x_TD: Tensor, routing: Routing, experts: Experts) -> Tensor:
        """The sum of all experts. Uses up `x_TD` where weights multiply what goes into experts."""
        ops, everyone = self._ops, self._everyone(x_TD.shape[0])
        shared_TD = None if self._shared is None else self._run_shared(x_TD, everyone)
        if self._spec.weigh_inputs:
            ops.scale_rows(x_TD.view(x_TD.shape[0], 1, -1), routing.weights_TX)
            routing = Routing(routing.ids_TX, everyone.weights_TX)
        y_TD = experts(self._layer, x_TD, routing)
        if shared_TD is not None:
            ops.add(y_TD, shared_TD)
        if self._spec.average_shared:
            ops.scale(y_TD, 0.5)
        return y_TD if self._norm is None else ops.rms_norm(y_TD, self._norm, self._spec.sum_eps)

    def _run_shared(self, x_TD: Tensor, everyone: Routing) -> Tensor:
        assert self._shared is not None
        if self._gate is not None:
            weight_T1 = self._ops.sigmoid(self._ops.linear(x_TD, self._gate))
            everyone = Routing(everyone.ids_TX, weight_T1)
        return self._ops.experts(x_TD, everyone, self._shared)


class BesideBlock:
    """Experts with a dense block beside them, each between norms of its own (Gemma 4)."""

    def __init__(
        self, layer: int, model: ModelSpec, spec: Moe, scope: Scope, ops: Ops, everyone: OneExpert
    ) -> None:
        assert spec.beside is not None
        self._ops, self._eps = ops, model.eps
        self.moe = MoeBlock(layer, spec, scope, ops, everyone)
        self._dense = DenseBlock(spec.beside, scope, ops, everyone)
        self.into_router_D = scope.vector("router_norm") * model.hidden**-0.5
        self._into_dense, self._behind_dense, self._behind_experts = (
            Norm(model, name, scope, ops)
            for name in ("dense_norm", "behind_dense_norm", "behind_experts_norm")
        )

    def __call__(self, x_TD: Tensor, normed_TD: Tensor, experts: Experts) -> Tensor:
        """`normed_TD`: what goes into the experts."""
        routing = self.moe.route(self._ops.rms_norm(x_TD, self.into_router_D, self._eps))
        y_TD = self._behind_experts(self.moe.run(normed_TD, routing, experts))
        dense_TD = self._dense(self._into_dense(x_TD))
        self._ops.add(y_TD, self._behind_dense(dense_TD))
        return y_TD
