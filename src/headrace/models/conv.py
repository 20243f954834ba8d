"""A short convolution between two gates (LFM2).

Shapes: T tokens, N all projected channels, C channels of the convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.models.spec import ShortConv
from headrace.models.state import RecurrentPool
from headrace.models.tensors import Scope
from headrace.ops.spans import Spans
from headrace.ops.table import Ops


class ConvBlock:
    """One layer's convolution, from normed input to what is added to the residual stream."""

    def __init__(self, spec: ShortConv, scope: Scope, ops: Ops) -> None:
        self._ops, self._channels = ops, spec.channels
        self._project = scope.linear("bcx", bias=spec.bias)
        self._conv = scope.vector("conv")
        self._bias = scope.vector("conv.bias") if spec.bias else None
        self._out = scope.linear("o", bias=spec.bias)

    def __call__(self, x_TD: Tensor, spans: Spans, pool: RecurrentPool) -> Tensor:
        """c * conv(b * x), with b, c and x as projected."""
        ops = self._ops
        y_TN = ops.linear(x_TD, self._project)
        b_TC, c_TC, y_TC = torch.split(y_TN, [self._channels] * 3, dim=1)
        y_TC = ops.multiply(b_TC, y_TC)
        y_TC = ops.conv(y_TC, self._conv, self._bias, pool.conv, spans, silu=False)
        return ops.linear(ops.multiply(c_TC, y_TC), self._out)
