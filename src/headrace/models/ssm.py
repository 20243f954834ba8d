"""Mamba 2: short convolution, state space recurrence, gated norm (arXiv 2405.21060).

Shapes: T tokens, N all projected channels, C convolved channels (x, b, c), I channels of x, H
heads, V head width, G groups, D rows of the state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.models.delta import rate_of
from headrace.models.spec import ModelSpec, Ssm
from headrace.models.state import RecurrentPool
from headrace.models.tensors import Scope
from headrace.ops.spans import Spans
from headrace.ops.table import Gating, Ops


class SsmBlock:
    """One layer's recurrence, from normed input to what is added to the residual stream."""

    def __init__(self, model: ModelSpec, spec: Ssm, scope: Scope, ops: Ops) -> None:
        self._spec, self._ops, self._eps = spec, ops, model.eps
        self._project = scope.linear("zxbcdt", bias=spec.bias)
        self._conv = scope.vector("conv")
        self._conv_bias = scope.vector("conv.bias") if spec.conv_bias else None
        self._rate = rate_of(scope, stored=spec.rate)
        self._ones = torch.ones_like(self._rate)
        self._dt_bias = scope.vector("dt_bias")
        self._skip = scope.vector("skip")
        self._norm = scope.vector("ssm_norm").view(spec.groups, -1)
        self._out = scope.linear("o", bias=spec.bias)

    def __call__(self, x_TD: Tensor, spans: Spans, pool: RecurrentPool) -> Tensor:
        assert pool.matrix is not None
        spec, ops, inner = self._spec, self._ops, self._spec.inner
        y_TN = ops.linear(x_TD, self._project)
        tokens = y_TN.shape[0]
        gate_TI, mixed_TC, dt_TH = torch.split(y_TN, [inner, spec.channels, spec.heads], dim=1)
        mixed_TC = ops.conv(mixed_TC, self._conv, self._conv_bias, pool.conv, spans, silu=True)
        row, heads, groups = spec.channels, spec.heads, spec.groups
        shape, strides = (tokens, groups, spec.state), (row, spec.state, 1)
        out_THV = ops.ssm(
            mixed_TC.as_strided((tokens, heads, spec.head_dim), (row, spec.head_dim, 1)),
            mixed_TC.as_strided(shape, strides, inner),
            mixed_TC.as_strided(shape, strides, inner + groups * spec.state),
            ops.decay(dt_TH, self._rate, self._dt_bias),
            ops.decay(dt_TH, self._ones, self._dt_bias),  # the step: softplus(dt + bias)
            self._skip,
            pool.matrix,
            spans,
        )
        each = inner // groups
        gate = gate_TI.as_strided((tokens, groups, each), (y_TN.stride(0), each, 1))
        out = out_THV.view(tokens, groups, each)
        out = ops.gated_rms_norm(out, gate, self._norm, self._eps, gating=Gating.SILU_BEFORE)
        return ops.linear(out.view(tokens, inner), self._out)
