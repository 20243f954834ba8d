"""Linear maps on the native pool. A map is described to it once and found again by identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headrace._native import Matrix, Pool
from headrace.formats.packed import Packed, Weight, code_of, stride_bytes
from headrace.ops.table import Linear


class _Prepared(NamedTuple):
    of: Linear  # kept alive: the addresses below are its tensors'
    matrix: Matrix
    bias: int
    rows: int
    exact: bool


def matrix_of(parts: Sequence[Weight]) -> Matrix:
    """Parts of as many columns, where they lie; the caller keeps them alive."""
    assert all(isinstance(p, Packed) or p.stride(1) == 1 for p in parts)
    rows = [(p.data_ptr(), int(p.shape[0]), stride_bytes(p), code_of(p)) for p in parts]
    return Matrix(rows, int(parts[0].shape[1]))


class NativeLinear:
    """`exact`: inputs are never rounded to bfloat16."""

    def __init__(self, pool: Pool, *, exact: bool) -> None:
        self._run, self._exact = pool.linear, exact
        self._prepared: dict[int, _Prepared] = {}

    def __call__(self, x_TK: Tensor, w: Linear) -> Tensor:
        ready = self._prepared.get(id(w)) or self._prepare(w)
        x_TK = x_TK.contiguous()
        tokens = x_TK.shape[0]
        y_TN = torch.empty(tokens, ready.rows)
        self._run(x_TK.data_ptr(), tokens, ready.matrix, ready.bias, y_TN.data_ptr(), ready.exact)
        return y_TN

    def _prepare(self, w: Linear) -> _Prepared:
        matrix = matrix_of(w.parts)
        bias = 0 if w.bias_N is None else w.bias_N.data_ptr()
        ready = _Prepared(w, matrix, bias, w.rows, self._exact or w.exact)
        self._prepared[id(w)] = ready
        return ready
