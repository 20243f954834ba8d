"""Causal attention over paged keys and values on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool
from headrace.formats.float import CODES
from headrace.ops.spans import Spans


class NativeAttention:
    """One call for all sequences of a step."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.attention

    def __call__(
        self,
        q_THD: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        spans: Spans,
        *,
        scale: float,
        window: int = 0,
        chunked: bool = False,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        tokens, heads, width = q_THD.shape
        if q_THD.stride(1) != width:
            q_THD = q_THD.contiguous()
        groups, value_dim = v_pool.shape[1:]
        assert v_pool.stride(0) == groups * v_pool.stride(1), v_pool.stride()
        out = torch.empty(tokens, heads, value_dim)
        self._run(
            q=q_THD.data_ptr(),
            q_stride=q_THD.stride(0),
            k=k_pool.data_ptr(),
            v=v_pool.data_ptr(),
            format=CODES[k_pool.dtype],
            out=out.data_ptr(),
            sequences=spans.sequences,
            offsets=spans.offsets_S1.data_ptr(),
            contexts=spans.contexts_S.data_ptr(),
            blocks=spans.blocks_SB.data_ptr(),
            max_blocks=spans.blocks_SB.shape[1],
            block_size=spans.block_size,
            heads=heads,
            kv_heads=groups,
            head_dim=width,
            value_dim=value_dim,
            scale=scale,
            window=window,
            chunked=chunked,
            sinks=0 if sinks_H is None else sinks_H.data_ptr(),
            value_step=v_pool.stride(1),
        )
        return out
