"""The gated delta rule in plain PyTorch, token by token (arXiv 2412.06464, equation 10)."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ops.runs import walk
from headrace.ops.spans import Spans

NORM_EPS = 1e-6


def delta(
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
    """S *= exp(decay); S += k (beta (v - k.S))^T; out = (scale q).S, per value head; [T, H, V].

    decay is [T, H], or [T, H, D]: one of each row of S (arXiv 2510.26692, equation 1). Value head i
    uses key head i // (H / G), or i % G if `tiled`. `normalize`: q and k are first
    divided by sqrt(sum of squares + 1e-6). `Spans.runs` tells where a copy of S is kept.
    """
    repeat = v_THV.shape[1] // k_TGD.shape[1]
    q, k = q_TGD.float(), k_TGD.float()
    if normalize:
        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + NORM_EPS)
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + NORM_EPS)
    q = q * scale
    if tiled:
        q, k = q.repeat(1, repeat, 1), k.repeat(1, repeat, 1)
    else:
        q, k = q.repeat_interleave(repeat, 1), k.repeat_interleave(repeat, 1)
    out = torch.empty(v_THV.shape)
    for begin, end, slot, keep in walk(spans):
        s_HDV = state[slot].clone()
        for t in range(begin, end):
            s_HDV *= torch.exp(decay_TH[t]).view(s_HDV.shape[0], -1, 1)
            error_HV = v_THV[t] - (k[t][:, :, None] * s_HDV).sum(1)
            s_HDV += k[t][:, :, None] * (beta_TH[t][:, None] * error_HV)[:, None, :]
            out[t] = (q[t][:, :, None] * s_HDV).sum(1)
        state[slot] = s_HDV
        if keep >= 0:
            state[keep] = s_HDV
    return out
