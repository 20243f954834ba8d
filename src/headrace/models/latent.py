"""Multi-head latent attention over a cache of latents: keys and values are never expanded.

Queries are taken to the latent space head by head, and what attention gives is taken out of it, so
that all heads share one key of R + P channels whose first R are the value. Shapes: T tokens, N all
projected channels, H heads, K key width, V value width, R rank, P rotated channels.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headrace.formats.packed import row_blocks
from headrace.models.attention import Angles
from headrace.models.spec import LatentAttention
from headrace.models.state import KvPool
from headrace.models.tensors import Scope
from headrace.ops.spans import Spans
from headrace.ops.table import HeadLinear, Linear, Ops


class LatentBlock:
    """One layer's attention, from normed input to what is added to the residual stream."""

    def __init__(self, spec: LatentAttention, scope: Scope, ops: Ops) -> None:
        self._spec, self._ops = spec, ops
        ranked = bool(spec.query_rank)
        self._project = _project(spec, scope)
        self._query = scope.linear("q_b") if ranked else None
        self._q_norm = scope.vector("q_a_norm") if ranked else None
        self._kv_norm = scope.vector("kv_norm")
        self._into, self._out_of = _maps(spec, scope)
        self._out = scope.linear("o", bias=spec.out_bias)

    def __call__(
        self,
        x_TD: Tensor,
        spans: Spans,
        pool: KvPool,
        angles: Angles | None,
        heat_T1: Tensor | None = None,
    ) -> Tensor:
        """`heat_T1`: what the queries are multiplied by."""
        spec, ops, rank = self._spec, self._ops, self._spec.rank
        rotated = spec.rope.rotated
        y_TN = ops.linear(x_TD, self._project)
        tokens, channels = y_TN.shape
        at = channels - spec.width
        latent_TR = ops.rms_norm(y_TN[:, at : at + rank], self._kv_norm, spec.eps)
        turned = y_TN.as_strided((tokens, 1, rotated), (channels, rotated, 1), at + rank)
        q_THR = ops.per_head(self._queries(y_TN), self._into, keep=rotated)
        if angles is not None:
            for part in (turned, q_THR[..., rank:]):
                ops.rope(part, *angles, interleaved=spec.rope.interleaved)
        if heat_T1 is not None:
            ops.scale_rows(q_THR, heat_T1)
        ops.store_kv(latent_TR.view(tokens, 1, rank), pool.values, spans.kv_slots_T)
        ops.store_kv(turned, pool.keys[..., rank:], spans.kv_slots_T)
        out_THR = ops.attention(q_THR, pool.keys, pool.values, spans, scale=spec.scale)
        out_THV = ops.per_head(out_THR, self._out_of)
        return ops.linear(out_THV.view(tokens, spec.heads * spec.value_dim), self._out)

    def _queries(self, y_TN: Tensor) -> Tensor:
        """[T, H, K + P]"""
        spec = self._spec
        shape = (y_TN.shape[0], spec.heads, spec.query_width)
        if self._query is None or self._q_norm is None:
            return y_TN.as_strided(shape, (y_TN.shape[1], spec.query_width, 1))
        own = self._ops.rms_norm(y_TN[:, : spec.query_rank], self._q_norm, spec.eps)
        return self._ops.linear(own, self._query).view(shape)


def _project(spec: LatentAttention, scope: Scope) -> Linear:
    """What meets the residual stream: queries or their latents, then latents and rotated keys."""
    if spec.query_rank or not spec.bias:
        return scope.linear("q_a" if spec.query_rank else "q", "kv_a", bias=spec.bias)
    plain = scope.linear("q", "kv_a")  # queries without latents have no bias
    none = torch.zeros(spec.heads * spec.query_width)
    return replace(plain, bias_N=torch.cat([none, scope.vector("kv_a.bias")]))


def _maps(spec: LatentAttention, scope: Scope) -> tuple[HeadLinear, HeadLinear]:
    """Into the latent space and out of it."""
    if spec.split:
        keys = row_blocks(scope.matrix("k_b"), [spec.rank] * spec.heads)
        values = row_blocks(scope.matrix("v_b"), [spec.value_dim] * spec.heads)
        return HeadLinear(tuple(keys)), HeadLinear(tuple(values))
    blocks = row_blocks(scope.matrix("kv_b"), [spec.key_dim, spec.value_dim] * spec.heads)
    return HeadLinear(tuple(blocks[::2]), across=True), HeadLinear(tuple(blocks[1::2]))
