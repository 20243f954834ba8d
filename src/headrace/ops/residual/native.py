"""Adding to the residual stream, natively: part of a tape, unlike torch's own addition."""

from __future__ import annotations

from torch import Tensor

from headrace._native import Pool


class NativeAdd:
    """Both are dense."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.add

    def __call__(self, x_TD: Tensor, y_TD: Tensor) -> None:
        assert x_TD.is_contiguous()
        y_TD = y_TD.contiguous()
        self._run(x_TD.data_ptr(), y_TD.data_ptr(), x_TD.numel())
