"""Scattering keys or values of a step into their pool, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def store_kv(x_TGD: Tensor, pool: Tensor, slots_T: Tensor) -> None:
    """pool[slots_T] = x, rounded to nearest even where the pool is bfloat16."""
    pool[slots_T] = x_TGD.to(pool.dtype)
