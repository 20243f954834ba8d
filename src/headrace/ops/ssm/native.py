"""The state space recurrence of Mamba 2 on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool
from headrace.ops.runs import in_runs, kept
from headrace.ops.spans import Spans


class NativeSsm:
    """Tokens of x, b and c may lie apart; the heads of one lie side by side."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.ssm

    def __call__(
        self,
        x_THV: Tensor,
        b_TGD: Tensor,
        c_TGD: Tensor,
        decay_TH: Tensor,
        step_TH: Tensor,
        skip_H: Tensor,
        state: Tensor,
        spans: Spans,
    ) -> Tensor:
        tokens, heads, value_dim = x_THV.shape
        groups, key_dim = b_TGD.shape[1:]
        decay_TH, step_TH = decay_TH.contiguous(), step_TH.contiguous()
        out = torch.empty(tokens, heads, value_dim)
        sequences, offsets, slots = in_runs(spans)
        self._run(
            x=x_THV.data_ptr(),
            b=b_TGD.data_ptr(),
            c=c_TGD.data_ptr(),
            x_stride=x_THV.stride(0),
            b_stride=b_TGD.stride(0),
            c_stride=c_TGD.stride(0),
            decay=decay_TH.data_ptr(),
            step=step_TH.data_ptr(),
            skip=skip_H.data_ptr(),
            out=out.data_ptr(),
            sequences=sequences,
            offsets=offsets,
            slots=slots,
            state=state.data_ptr(),
            groups=groups,
            heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            **kept(spans),
        )
        return out
