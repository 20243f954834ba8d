"""Ops of the table that take each element by itself: sums, multipliers, gates, limits and order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class AddOp(Protocol):
    def __call__(self, x_TD: Tensor, y_TD: Tensor) -> None:
        """x += y, in place."""
        ...


class ScaleOp(Protocol):
    def __call__(self, x_TD: Tensor, factor: float, *, cap: float = 0.0) -> None:
        """x *= factor, then cap * tanh(x / cap) unless cap is 0; in place, x is dense."""
        ...


class ScaleRowsOp(Protocol):
    def __call__(self, x_THD: Tensor, by_TH: Tensor) -> None:
        """x[t, h] *= by[t, h], in place; x may be strided by T and H; by is [T, H] or [T, 1]."""
        ...


class TemperatureOp(Protocol):
    def __call__(
        self, positions_T: Tensor, span: int, strength: float, *, ahead: int = 1
    ) -> Tensor:
        """What queries at such positions (int64) are multiplied by, [T, 1]; see the reference."""
        ...


class GateOp(Protocol):
    def __call__(self, x: Tensor, gate: Tensor) -> None:
        """x *= sigmoid(gate), in place; x is dense [T, H, D], gate may be strided by T and H."""
        ...


class SigmoidOp(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """[T, H], rows may be strided; dense."""
        ...


class DecayOp(Protocol):
    def __call__(self, a_TH: Tensor, rate_H: Tensor, dt_bias_H: Tensor) -> Tensor:
        """rate * softplus(a + dt_bias), [T, H] dense; rate is float64, rows may be strided."""
        ...


class ClampOp(Protocol):
    def __call__(self, x: Tensor, limit: float) -> None:
        """Into [-limit, limit], in place; [T, H, D], may be strided by T and H."""
        ...


class MultiplyOp(Protocol):
    def __call__(self, x_TC: Tensor, by_TC: Tensor) -> Tensor:
        """x * by, dense; rows may be strided."""
        ...


class ArrangeOp(Protocol):
    def __call__(self, x_TN: Tensor, order_M: Tensor) -> Tensor:
        """Columns in another order: y[:, i] = x[:, order[i]], dense [T, M]; order is int32."""
        ...
