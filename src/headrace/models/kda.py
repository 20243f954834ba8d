"""Kimi Delta Attention: short convolution, delta rule with a decay of each channel, gated norm
(arXiv 2510.26692).

Shapes: T tokens, N all projected channels, C convolved channels (q, k, v), H heads, D their width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.models.spec import ChannelDelta, ModelSpec
from headrace.models.state import RecurrentPool
from headrace.models.tensors import Scope
from headrace.ops.activation.reference import decay_rate
from headrace.ops.spans import Spans
from headrace.ops.table import Gating, Linear, Ops


class ChannelDeltaBlock:
    """One layer's recurrence, from normed input to what is added to the residual stream."""

    def __init__(self, model: ModelSpec, spec: ChannelDelta, scope: Scope, ops: Ops) -> None:
        self._spec, self._ops, self._eps = spec, ops, model.eps
        self._project = scope.linear("q", "k", "v", "b")
        self._forget = scope.linear("f_a"), scope.linear("f_b")
        self._open = scope.linear("g_a"), scope.linear("g_b")
        self._conv = torch.cat([scope.vector(f"conv_{n}") for n in "qkv"])
        self._rate = decay_rate(scope.vector("a_log")).repeat_interleave(spec.head_dim)
        self._dt_bias = scope.vector("dt_bias")
        self._norm = scope.vector("delta_norm")
        self._out = scope.linear("o")

    def __call__(self, x_TD: Tensor, spans: Spans, pool: RecurrentPool) -> Tensor:
        assert pool.matrix is not None
        spec, ops = self._spec, self._ops
        heads, width, inner = spec.heads, spec.head_dim, spec.heads * spec.head_dim
        y_TN = ops.linear(x_TD, self._project)
        tokens, row = y_TN.shape[0], spec.channels
        mixed_TC, b_TH = torch.split(y_TN, [row, heads], dim=1)
        mixed_TC = ops.conv(mixed_TC, self._conv, None, pool.conv, spans, silu=True)
        shape, strides = (tokens, heads, width), (row, width, 1)
        decay = ops.decay(self._narrow(x_TD, self._forget), self._rate, self._dt_bias)
        out_THD = ops.delta(
            mixed_TC.as_strided(shape, strides),
            mixed_TC.as_strided(shape, strides, inner),
            mixed_TC.as_strided(shape, strides, 2 * inner),
            decay.view(shape),
            ops.sigmoid(b_TH),
            pool.matrix,
            spans,
            normalize=True,
            scale=width**-0.5,
        )
        gate = self._narrow(x_TD, self._open).view(shape)
        out_THD = ops.gated_rms_norm(out_THD, gate, self._norm, self._eps, gating=Gating.SIGMOID)
        return ops.linear(out_THD.view(tokens, inner), self._out)

    def _narrow(self, x_TD: Tensor, maps: tuple[Linear, Linear]) -> Tensor:
        """Through a narrow layer."""
        first, second = maps
        return self._ops.linear(self._ops.linear(x_TD, first), second)
