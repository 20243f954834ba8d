"""Causal attention over paged keys and values in plain PyTorch, sequence by sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ops.spans import Spans


def attention(
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
    """softmax(scale q.k) v, [T, H, Dv].

    A token at position p sees keys 0..p, or the last `window` of them, itself counted, or with
    `chunked` those since the last multiple of `window`. Query head h reads KV head h // (H / G).
    `sinks_H`: a logit per head that joins the softmax's sum and has no value.
    """
    heads, groups = q_THD.shape[1], k_pool.shape[1]
    out = torch.empty(q_THD.shape[0], heads, v_pool.shape[2])
    for s in range(spans.sequences):
        begin, end = int(spans.offsets_S1[s]), int(spans.offsets_S1[s + 1])
        first = int(spans.contexts_S[s])
        total = first + end - begin
        # What lies behind every token's window may have been given away.
        keys = torch.arange(max(0, first - window + 1) if window else 0, total)
        slots = spans.blocks_SB[s].long()[keys // spans.block_size] * spans.block_size
        slots = slots + keys % spans.block_size
        k_JHD = k_pool[slots].float().repeat_interleave(heads // groups, 1)
        v_JHV = v_pool[slots].float().repeat_interleave(heads // groups, 1)
        at = torch.arange(first, total)[:, None]
        seen = keys[None] <= at
        if window:
            seen &= keys[None] >= (at - at % window if chunked else at - window + 1)
        logits = torch.einsum("thd,jhd->htj", q_THD[begin:end].float(), k_JHD) * scale
        logits = logits.masked_fill(~seen, -torch.inf)
        if sinks_H is not None:
            sink = sinks_H[:, None, None].expand(heads, end - begin, 1)
            logits = torch.cat([logits, sink], -1)
        p_HTJ = torch.softmax(logits, -1)[..., : len(keys)]
        out[begin:end] = torch.einsum("htj,jhv->thv", p_HTJ, v_JHV)
    return out
