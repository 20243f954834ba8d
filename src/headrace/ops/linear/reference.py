"""y = x W^T + bias in plain PyTorch; weights of any format are widened exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.formats.packed import decode
from headrace.ops.table import Linear


def linear(x_TK: Tensor, w: Linear) -> Tensor:
    """[T, N], the parts of `w` one after another."""
    y_TN = torch.cat([x_TK.float() @ decode(part).T for part in w.parts], dim=-1)
    return y_TN if w.bias_N is None else y_TN + w.bias_N
