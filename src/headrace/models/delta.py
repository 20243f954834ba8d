"""Gated DeltaNet: short convolution, gated delta rule, gated norm (arXiv 2412.06464).

Shapes: T tokens, N all projected channels, C convolved channels (q, k, v), G key heads, H value
heads, D key width, V value width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.models.spec import DeltaRule, ModelSpec
from headrace.models.state import RecurrentPool
from headrace.models.tensors import Scope
from headrace.ops.activation.reference import decay_rate
from headrace.ops.spans import Spans
from headrace.ops.table import Ops


class DeltaBlock:
    """One layer's recurrence, from normed input to what is added to the residual stream."""

    def __init__(self, model: ModelSpec, spec: DeltaRule, scope: Scope, ops: Ops) -> None:
        self._spec, self._ops, self._eps = spec, ops, model.eps
        first = ("qkvz",) if spec.qkvz_by_head else ("qkv", "z")
        last = ("ba",) if spec.ba_by_head else ("b", "a")
        self._project = scope.linear(*first, *last)
        self._order = _order(spec) if spec.qkvz_by_head or spec.ba_by_head else None
        self._conv = scope.vector("conv")
        self._rate = rate_of(scope, stored=spec.rate)
        self._dt_bias = scope.vector("dt_bias")
        self._norm = scope.vector("delta_norm")
        self._out = scope.linear("o")

    def __call__(self, x_TD: Tensor, spans: Spans, pool: RecurrentPool) -> Tensor:
        spec, ops = self._spec, self._ops
        heads, keys, values = spec.value_heads, spec.key_dim, spec.value_dim
        assert pool.matrix is not None
        y_TN = ops.linear(x_TD, self._project)
        if self._order is not None:
            y_TN = ops.arrange(y_TN, self._order)
        tokens = y_TN.shape[0]
        mixed_TC, z, b_TH, a_TH = torch.split(
            y_TN, [spec.channels, heads * values, heads, heads], dim=1
        )
        mixed_TC = ops.conv(mixed_TC, self._conv, None, pool.conv, spans, silu=True)
        row, k_at = spec.channels, spec.key_heads * keys
        q = mixed_TC.as_strided((tokens, spec.key_heads, keys), (row, keys, 1))
        k = mixed_TC.as_strided((tokens, spec.key_heads, keys), (row, keys, 1), k_at)
        v = mixed_TC.as_strided((tokens, heads, values), (row, values, 1), 2 * k_at)
        out_THV = ops.delta(
            q,
            k,
            v,
            ops.decay(a_TH, self._rate, self._dt_bias),
            ops.sigmoid(b_TH),
            pool.matrix,
            spans,
            normalize=True,
            scale=keys**-0.5,
            tiled=spec.tiled,
        )
        gate = z.as_strided((tokens, heads, values), (y_TN.stride(0), values, 1))
        out_THV = ops.gated_rms_norm(out_THV, gate, self._norm, self._eps)
        return ops.linear(out_THV.view(tokens, heads * values), self._out)


def rate_of(scope: Scope, *, stored: bool) -> Tensor:
    """-exp(A_log) of each head, float64: as it is `stored`, or computed."""
    if stored:
        return scope.vector("rate").double()
    return decay_rate(scope.vector("a_log"))


def _order(spec: DeltaRule) -> Tensor:
    """Where the channels q, k, v, z, b, a of all heads come out of the projection, int32."""
    heads, each = spec.key_heads, spec.value_heads // spec.key_heads
    key, value = spec.key_dim, each * spec.value_dim

    def order(widths: list[int], *, by_head: bool) -> list[Tensor]:
        """Of parts of such widths a head."""
        if not by_head:
            return [*torch.split(torch.arange(heads * sum(widths)), [heads * w for w in widths])]
        groups = torch.arange(heads * sum(widths)).view(heads, -1)
        return [part.flatten() for part in torch.split(groups, widths, dim=1)]

    qkvz = order([key, key, value, value], by_head=spec.qkvz_by_head)
    ba = order([each, each], by_head=spec.ba_by_head)
    begin = sum(len(part) for part in qkvz)
    return torch.cat([*qkvz, *(part + begin for part in ba)]).int()
