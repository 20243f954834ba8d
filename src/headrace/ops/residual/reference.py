"""Adding to the residual stream, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def add(x_TD: Tensor, y_TD: Tensor) -> None:
    """x += y, in place."""
    x_TD += y_TD
