"""The state space recurrence of Mamba 2 in plain PyTorch, token by token (arXiv 2405.21060, section
2.1 with a scalar A per head, discretised as there in section 4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ops.runs import walk
from headrace.ops.spans import Spans


def ssm(
    x_THV: Tensor,
    b_TGD: Tensor,
    c_TGD: Tensor,
    decay_TH: Tensor,
    step_TH: Tensor,
    skip_H: Tensor,
    state: Tensor,
    spans: Spans,
) -> Tensor:
    """S = exp(decay) S + b (step x)^T; out = c.S + skip x, per head; [T, H, V].

    Head i uses b and c of group i // (H / G). `Spans.runs` tells where a copy of S is kept.
    """
    repeat = x_THV.shape[1] // b_TGD.shape[1]
    b_THD, c_THD = b_TGD.repeat_interleave(repeat, 1), c_TGD.repeat_interleave(repeat, 1)
    out = torch.empty(x_THV.shape)
    for begin, end, slot, keep in walk(spans):
        s_HDV = state[slot].clone()
        for t in range(begin, end):
            s_HDV *= torch.exp(decay_TH[t])[:, None, None]
            s_HDV += b_THD[t][:, :, None] * (step_TH[t][:, None] * x_THV[t])[:, None, :]
            out[t] = (c_THD[t][:, :, None] * s_HDV).sum(1) + skip_H[:, None] * x_THV[t]
        state[slot] = s_HDV
        if keep >= 0:
            state[keep] = s_HDV
    return out
