"""Short causal depthwise convolution on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool
from headrace.ops.runs import in_runs, kept
from headrace.ops.spans import Spans


class NativeConv:
    """Tokens may lie apart, channels side by side."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.conv

    def __call__(
        self,
        x_TC: Tensor,
        weight_CK: Tensor,
        bias_C: Tensor | None,
        state: Tensor,
        spans: Spans,
        *,
        silu: bool,
    ) -> Tensor:
        tokens, channels = x_TC.shape
        y_TC = torch.empty(tokens, channels)
        self._run(
            x_TC.data_ptr(),
            tokens,
            x_TC.stride(0),
            channels,
            weight_CK.shape[1],
            weight_CK.data_ptr(),
            0 if bias_C is None else bias_C.data_ptr(),
            *in_runs(spans),
            state.data_ptr(),
            silu,
            y_TC.data_ptr(),
            **kept(spans),
        )
        return y_TC
