"""Grouped-query attention over paged keys and values.

Shapes: T tokens, N all projected channels, H query heads, G KV heads, D head width, V value width.
"""

from __future__ import annotations

from torch import Tensor

from headrace.models.spec import Attention, ModelSpec, QkNorm
from headrace.models.state import KvPool
from headrace.models.tensors import Scope
from headrace.ops.spans import Spans
from headrace.ops.table import Ops

Angles = tuple[Tensor, Tensor]  # cos, sin


class AttentionBlock:
    """One layer's attention, from normed input to what is added to the residual stream."""

    def __init__(self, model: ModelSpec, spec: Attention, scope: Scope, ops: Ops) -> None:
        self._spec, self._ops = spec, ops
        self._eps, self._plus_one = model.eps, model.norm_plus_one
        self._project = scope.linear("q", "k", "v", bias=spec.bias)
        self._out = scope.linear("o", bias=spec.out_bias)
        normed = spec.qk_norm != QkNorm.NONE
        self._q_norm = scope.vector("q_norm") if normed else None
        self._k_norm = scope.vector("k_norm") if normed else None
        self._interleaved = spec.rope is not None and spec.rope.interleaved
        self._sinks = scope.vector("sinks") if spec.sinks else None

    def __call__(self, x_TD: Tensor, spans: Spans, pool: KvPool, angles: Angles | None) -> Tensor:
        spec, ops = self._spec, self._ops
        heads, groups, width = spec.heads, spec.kv_heads, spec.head_dim
        y_TN = ops.linear(x_TD, self._project)
        tokens, channels = y_TN.shape
        step = 2 * width if spec.gate else width
        k_at = heads * step
        v_at = k_at + groups * width
        q = y_TN.as_strided((tokens, heads, width), (channels, step, 1))
        k = y_TN.as_strided((tokens, groups, width), (channels, width, 1), k_at)
        v = y_TN.as_strided((tokens, groups, spec.value_dim), (channels, spec.value_dim, 1), v_at)
        if self._q_norm is not None and self._k_norm is not None:
            q, k = self._norm(q, self._q_norm), self._norm(k, self._k_norm)
        if spec.clip is not None:
            for part in (q, k, v):
                ops.clamp(part, spec.clip)
        if angles is not None:
            for part in (q, k):
                ops.rope(part, *angles, interleaved=self._interleaved)
        ops.store_kv(k, pool.keys, spans.kv_slots_T)
        ops.store_kv(v, pool.values, spans.kv_slots_T)
        out_THV = ops.attention(
            q,
            pool.keys,
            pool.values,
            spans,
            scale=spec.scale,
            window=spec.window,
            sinks_H=self._sinks,
        )
        if spec.gate:
            gate = y_TN.as_strided((tokens, heads, width), (channels, step, 1), width)
            ops.gate(out_THV, gate)
        return ops.linear(out_THV.view(tokens, heads * spec.value_dim), self._out)

    def _norm(self, x_THD: Tensor, weight: Tensor) -> Tensor:
        norm = self._ops.rms_norm
        if self._spec.qk_norm == QkNorm.HEAD:
            return norm(x_THD, weight, self._eps, plus_one=self._plus_one)
        return norm(
            x_THD.view(x_THD.shape[0], -1), weight, self._eps, plus_one=self._plus_one
        ).view(x_THD.shape)
