"""Gates, limits and order on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool


class NativeGate:
    """x is dense; gate, [T, H, D] or [T, H], may be strided by token and by head."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.gate

    def __call__(self, x: Tensor, gate: Tensor) -> None:
        assert x.is_contiguous()
        assert x.shape == gate.shape
        self._onto(x.data_ptr(), gate, x)

    def sigmoid(self, x: Tensor) -> Tensor:
        """Of [T, H, D] or [T, H], rows strided; dense."""
        y = torch.empty(x.shape)
        self._onto(0, x, y)
        return y

    def _onto(self, x: int, gate: Tensor, y: Tensor) -> None:
        assert gate.stride(-1) == 1 or gate.shape[-1] == 1
        tokens, width = gate.shape[0], gate.shape[-1]
        heads, apart = (gate.shape[1], gate.stride(1)) if gate.dim() == 3 else (1, 0)
        self._run(x, gate.data_ptr(), tokens, heads, width, gate.stride(0), apart, y.data_ptr())


class NativeDecay:
    """Rows of `a` may be strided."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.decay

    def __call__(self, a_TH: Tensor, rate_H: Tensor, dt_bias_H: Tensor) -> Tensor:
        assert rate_H.dtype == torch.float64
        assert a_TH.stride(1) == 1
        tokens, heads = a_TH.shape
        y_TH = torch.empty(tokens, heads)
        self._run(
            a_TH.data_ptr(),
            tokens,
            heads,
            a_TH.stride(0),
            rate_H.data_ptr(),
            dt_bias_H.data_ptr(),
            y_TH.data_ptr(),
        )
        return y_TH


class NativeMultiply:
    """Rows of both may lie apart."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.multiply

    def __call__(self, x_TC: Tensor, by_TC: Tensor) -> Tensor:
        assert x_TC.shape == by_TC.shape
        assert x_TC.stride(1) == by_TC.stride(1) == 1
        tokens, width = x_TC.shape
        y_TC = torch.empty(tokens, width)
        x, by, y = x_TC.data_ptr(), by_TC.data_ptr(), y_TC.data_ptr()
        self._run(x, by, tokens, width, x_TC.stride(0), by_TC.stride(0), y)
        return y_TC


class NativeArrange:
    """x is dense."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.arrange

    def __call__(self, x_TN: Tensor, order_M: Tensor) -> Tensor:
        assert x_TN.is_contiguous()
        assert order_M.dtype == torch.int32
        tokens, columns = x_TN.shape[0], order_M.shape[0]
        y_TM = torch.empty(tokens, columns)
        x, y = x_TN.data_ptr(), y_TM.data_ptr()
        self._run(x, tokens, x_TN.shape[1], order_M.data_ptr(), columns, y)
        return y_TM


class NativeClamp:
    """In place; the heads of a token lie side by side."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.clamp

    def __call__(self, x: Tensor, limit: float) -> None:
        tokens, heads, width = x.shape
        apart, head, _ = x.stride()
        if head == width:
            self._run(x.data_ptr(), tokens, heads * width, apart, limit)
            return
        for h in range(heads):  # a gated query: the gate lies between its heads
            self._run(x.data_ptr() + 4 * h * head, tokens, width, apart, limit)
