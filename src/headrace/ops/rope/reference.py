"""Rotary position embedding in plain PyTorch (arXiv 2104.09864)."""

from __future__ import annotations

from torch import Tensor


def rope(x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor, *, interleaved: bool = False) -> None:
    """Rotates pairs of the first 2R channels in place: (i, i+R), or (2i, 2i+1) if `interleaved`."""
    rotated = 2 * cos_TR.shape[1]
    part = x_THD[..., :rotated]
    a, b = (
        (part[..., 0::2], part[..., 1::2])
        if interleaved
        else (part[..., : rotated // 2], part[..., rotated // 2 :])
    )
    cos, sin = cos_TR[:, None], sin_TR[:, None]
    new_a, new_b = a * cos - b * sin, b * cos + a * sin
    a.copy_(new_a)
    b.copy_(new_b)
