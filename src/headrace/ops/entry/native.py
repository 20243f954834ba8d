"""Rows of a table, angles of positions and the best of a row on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool
from headrace.formats.packed import Packed, Weight, code_of, stride_bytes


class NativeLookup:
    """The table's rows may be strided."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.lookup

    def __call__(self, table_VD: Weight, ids_N: Tensor) -> Tensor:
        assert isinstance(table_VD, Packed) or table_VD.stride(1) == 1
        assert ids_N.dtype == torch.int64
        rows, width = table_VD.shape
        count = ids_N.shape[0]
        y_ND = torch.empty(count, width)
        self._run(
            table_VD.data_ptr(),
            code_of(table_VD),
            rows,
            width,
            stride_bytes(table_VD),
            ids_N.data_ptr(),
            count,
            y_ND.data_ptr(),
        )
        return y_ND


class NativeAngles:
    """cos and sin are computed anew for each step: a table of them would grow with the context."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.angles

    def __call__(
        self, positions_T: Tensor, frequencies_R: Tensor, factor: float
    ) -> tuple[Tensor, Tensor]:
        tokens, pairs = positions_T.shape[0], frequencies_R.shape[0]
        cos_TR, sin_TR = torch.empty(tokens, pairs), torch.empty(tokens, pairs)
        self._run(
            positions_T.data_ptr(),
            tokens,
            frequencies_R.data_ptr(),
            pairs,
            factor,
            cos_TR.data_ptr(),
            sin_TR.data_ptr(),
        )
        return cos_TR, sin_TR


class NativeBest:
    """Rows are dense."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.best

    def __call__(self, x_NV: Tensor) -> Tensor:
        assert x_NV.is_contiguous()
        rows, width = x_NV.shape
        best_N = torch.empty(rows, dtype=torch.int64)
        self._run(x_NV.data_ptr(), rows, width, best_N.data_ptr())
        return best_N
