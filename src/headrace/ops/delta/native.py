"""The gated delta rule on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool
from headrace.ops.runs import in_runs, kept
from headrace.ops.spans import Spans


class NativeDelta:
    """Tokens of q, k and v may lie apart; the heads of one lie side by side."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.delta

    def __call__(
        self,
        q_TGD: Tensor,
        k_TGD: Tensor,
        v_THV: Tensor,
        decay_TH: Tensor,
        beta_TH: Tensor,
        state: Tensor,
        spans: Spans,
        *,
        normalize: bool,
        scale: float,
        tiled: bool = False,
    ) -> Tensor:
        tokens, value_heads, value_dim = v_THV.shape
        key_heads, key_dim = k_TGD.shape[1:]
        assert decay_TH.dim() == 2 or decay_TH.shape[2] == key_dim
        decay_TH, beta_TH = decay_TH.contiguous(), beta_TH.contiguous()
        out = torch.empty(tokens, value_heads, value_dim)
        sequences, offsets, slots = in_runs(spans)
        self._run(
            q=q_TGD.data_ptr(),
            k=k_TGD.data_ptr(),
            v=v_THV.data_ptr(),
            q_stride=q_TGD.stride(0),
            k_stride=k_TGD.stride(0),
            v_stride=v_THV.stride(0),
            decay=decay_TH.data_ptr(),
            beta=beta_TH.data_ptr(),
            out=out.data_ptr(),
            sequences=sequences,
            offsets=offsets,
            slots=slots,
            state=state.data_ptr(),
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            normalize=normalize,
            scale=scale,
            tiled=tiled,
            decay_rows=decay_TH.dim() == 3,
            **kept(spans),
        )
        return out
