"""Rotary position embedding on the native pool."""

from __future__ import annotations

from torch import Tensor

from headrace._native import Pool


class NativeRope:
    """In place; heads lie evenly spaced within a token."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.rope

    def __call__(
        self, x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor, *, interleaved: bool = False
    ) -> None:
        tokens, heads, _ = x_THD.shape
        token_stride, head_stride, _ = x_THD.stride()
        self._run(
            x_THD.data_ptr(),
            tokens,
            heads,
            token_stride,
            head_stride,
            cos_TR.data_ptr(),
            sin_TR.data_ptr(),
            2 * cos_TR.shape[1],
            interleaved,
        )
