"""Linear maps head by head on the native pool: weights where they lie, described once."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Matrix, Pool
from headrace.ops.linear.native import matrix_of
from headrace.ops.table import HeadLinear


class NativePerHead:
    """`exact`: inputs are never rounded to bfloat16. Maps are found again by identity."""

    def __init__(self, pool: Pool, *, exact: bool) -> None:
        self._run, self._exact = pool.per_head, exact
        self._prepared: dict[int, tuple[HeadLinear, Matrix]] = {}  # the map is kept alive

    def __call__(self, x_THK: Tensor, w: HeadLinear, *, keep: int = 0) -> Tensor:
        tokens, heads, width = x_THK.shape
        assert (heads, width) == (len(w.parts), w.inputs + keep), (x_THK.shape, w.inputs)
        assert x_THK.stride(2) == 1
        ready = self._prepared.get(id(w))
        if ready is None:
            ready = self._prepared[id(w)] = (w, matrix_of(w.parts))
        y_THN = torch.empty(tokens, heads, w.outputs + keep)
        self._run(
            x=x_THK.data_ptr(),
            tokens=tokens,
            token_stride=x_THK.stride(0),
            head_stride=x_THK.stride(1),
            w=ready[1],
            y=y_THN.data_ptr(),
            keep=keep,
            across=w.across,
            exact=self._exact,
        )
        return y_THN
