"""Grouped-query attention over paged keys and values.

Shapes: T tokens, N all projected channels, H query heads, G KV heads, D head width, V value width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.models.spec import Attention, ModelSpec, OutputGate, QkNorm
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
        values = () if spec.values_of_keys else ("v",)
        names = ("qkv",) if spec.fused else ("q", "k", *values)
        self._project = scope.linear(*names, bias=spec.bias)
        self._out = scope.linear("o", bias=spec.out_bias)
        apart = spec.gate not in (OutputGate.NONE, OutputGate.WITHIN_QUERY)
        self._gate = scope.linear("gate") if apart else None
        normed = spec.qk_norm in (QkNorm.HEAD, QkNorm.WHOLE)
        self._q_norm = scope.vector("q_norm") if normed else None
        self._k_norm = scope.vector("k_norm") if normed else None
        gates = self._gate.rows if self._gate is not None else 0
        self._softplus = torch.ones(gates, dtype=torch.float64), torch.zeros(gates)
        self._interleaved = spec.rope is not None and spec.rope.interleaved
        self._sinks = scope.vector("sinks") if spec.sinks else None

    def __call__(
        self,
        x_TD: Tensor,
        spans: Spans,
        pool: KvPool,
        angles: Angles | None,
        heat_T1: Tensor | None = None,
    ) -> Tensor:
        """`heat_T1`: what the queries are multiplied by."""
        spec, ops = self._spec, self._ops
        heads, groups, width = spec.heads, spec.kv_heads, spec.head_dim
        y_TN = ops.linear(x_TD, self._project)
        tokens, channels = y_TN.shape
        within = spec.gate == OutputGate.WITHIN_QUERY
        step = 2 * width if within else width
        k_at = heads * step
        v_at = k_at if spec.values_of_keys else k_at + groups * width
        q = y_TN.as_strided((tokens, heads, width), (channels, step, 1))
        k = y_TN.as_strided((tokens, groups, width), (channels, width, 1), k_at)
        v = y_TN.as_strided((tokens, groups, spec.value_dim), (channels, spec.value_dim, 1), v_at)
        if spec.unit_values:
            v = ops.rms_norm(v, None, self._eps)
        if not spec.rotate_first:
            q, k = self._norm(q, self._q_norm), self._norm(k, self._k_norm)
        if spec.clip is not None:
            for part in (q, k, v):
                ops.clamp(part, spec.clip)
        if angles is not None:
            for part in (q, k):
                ops.rope(part, *angles, interleaved=self._interleaved)
        if spec.rotate_first:
            q, k = self._norm(q, self._q_norm), self._norm(k, self._k_norm)
        if heat_T1 is not None:
            ops.scale_rows(q, heat_T1)
        ops.store_kv(k, pool.keys, spans.kv_slots_T)
        ops.store_kv(v, pool.values, spans.kv_slots_T)
        out_THV = ops.attention(
            q,
            pool.keys,
            pool.values,
            spans,
            scale=spec.scale,
            window=spec.window,
            chunked=spec.chunked,
            sinks_H=self._sinks,
        )
        if spec.value_scale != 1.0:  # of all values of a sum is of the sum
            ops.scale(out_THV, spec.value_scale)
        if within:
            gate = y_TN.as_strided((tokens, heads, width), (channels, step, 1), width)
            ops.gate(out_THV, gate)
        if self._gate is not None:
            self._open(out_THV, ops.linear(x_TD, self._gate))
        return ops.linear(out_THV.view(tokens, heads * spec.value_dim), self._out)

    def _open(self, out_THV: Tensor, gate_TN: Tensor) -> None:
        """Multiplies by a gate that has a projection of its own."""
        if self._spec.gate == OutputGate.APART:
            self._ops.gate(out_THV, gate_TN.view(out_THV.shape))
            return
        rate, bias = self._softplus
        by_TN = self._ops.decay(gate_TN, rate, bias)  # with 1 and 0 that is a softplus
        rows = (out_THV.shape[0], by_TN.shape[1], -1)
        self._ops.scale_rows(out_THV.view(rows), by_TN)

    def _norm(self, x_THD: Tensor, weight: Tensor | None) -> Tensor:
        norm = self._ops.rms_norm
        if self._spec.qk_norm == QkNorm.NONE:
            return x_THD
        if self._spec.qk_norm in (QkNorm.HEAD, QkNorm.UNIT):
            return norm(x_THD, weight, self._eps, plus_one=self._plus_one)
        return norm(
            x_THD.view(x_THD.shape[0], -1), weight, self._eps, plus_one=self._plus_one
        ).view(x_THD.shape)
