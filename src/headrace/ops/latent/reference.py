"""Linear maps head by head in plain PyTorch; weights of any format are widened exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.formats.packed import decode
from headrace.ops.table import HeadLinear


def per_head(x_THK: Tensor, w: HeadLinear, *, keep: int = 0) -> Tensor:
    """y[t, h] = W[h] x[t, h], or x[t, h] W[h] where `across`; then the last `keep` of x[t, h]."""
    given = x_THK.shape[2] - keep
    assert (x_THK.shape[1], given) == (len(w.parts), w.inputs), (x_THK.shape, w.inputs)
    maps = torch.stack([decode(part) if w.across else decode(part).T for part in w.parts])
    y_THN = torch.einsum("thk,hkn->thn", x_THK[..., :given].float(), maps)
    return torch.cat([y_THN, x_THK[..., given:]], dim=-1)
