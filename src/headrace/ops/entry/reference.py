"""Rows of a table, angles of positions and the best of a row, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.formats.packed import Packed, Weight, decode


def lookup(table_VD: Weight, ids_N: Tensor) -> Tensor:
    """Rows `ids_N` of the table, widened to float32, [N, D]."""
    if isinstance(table_VD, Packed):
        return decode(table_VD).index_select(0, ids_N)
    return decode(table_VD.index_select(0, ids_N))


def angles(positions_T: Tensor, frequencies_R: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """(cos, sin) of position * frequency, times `factor`, float32 [T, R]."""
    angle_TR = (positions_T.float()[:, None] * frequencies_R).double()
    return angle_TR.cos().float() * factor, angle_TR.sin().float() * factor


def best(x_NV: Tensor) -> Tensor:
    """The index of each row's largest, of equal ones the first, int64 [N]; -1 where an element is
    not finite.
    """
    best_N = torch.from_numpy(x_NV.numpy().argmax(axis=1))
    return torch.where(x_NV.isfinite().all(dim=1), best_N, -1)
