"""Short causal depthwise convolution, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ops.runs import walk
from headrace.ops.spans import Spans


def conv(
    x_TC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    state: Tensor,
    spans: Spans,
    *,
    silu: bool,
) -> Tensor:
    """y[t] = sum_k weight[:, k] x[t-K+1+k] + bias, or silu of that; earlier inputs come from state
    [slots, C, K-1].

    The state of each sequence is updated; the slot of a new one holds zeros. `Spans.runs` tells
    where a copy of it is kept.
    """
    kernel = weight_CK.shape[1]
    out = torch.empty(x_TC.shape)
    for begin, end, slot, keep in walk(spans):
        past_KC = state[slot].T
        x_JC = torch.cat([past_KC, x_TC[begin:end]], 0)
        y = torch.stack([(x_JC[t : t + kernel].T * weight_CK).sum(1) for t in range(end - begin)])
        y = y if bias_C is None else y + bias_C
        out[begin:end] = torch.nn.functional.silu(y) if silu else y
        state[slot] = x_JC[x_JC.shape[0] - (kernel - 1) :].T
        if keep >= 0:
            state[keep] = state[slot]
    return out
