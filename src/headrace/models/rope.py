"""Tables of cos and sin for rotary embeddings, made in blocks as contexts grow.

A position's row is computed once and then only read, so that it is the same in every batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.models.spec import LinearScaling, Llama3Scaling, Rope, Yarn

BLOCK = 4096  # positions


def frequencies(rope: Rope) -> Tensor:
    """Radians per position of each rotated pair, [rotated / 2], float32."""
    exponents = torch.arange(0, rope.rotated, 2, dtype=torch.float32) / rope.rotated
    plain = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)
        case Yarn() as scaling:
            return _yarn(plain, rope, scaling)


def _llama3(plain: Tensor, s: Llama3Scaling) -> Tensor:
    turns = s.original_context * plain / (2 * math.pi)  # within the original context
    ramp = ((turns - s.low_factor) / (s.high_factor - s.low_factor)).clamp(0, 1)
    return plain / s.factor * (1 - ramp) + plain * ramp


def _yarn(plain: Tensor, rope: Rope, s: Yarn) -> Tensor:
    def pair_turning(times: float) -> float:
        """Which pair turns so often within the original context (arXiv 2309.00071, section 3.2)."""
        span = s.original_context / (times * 2 * math.pi)
        return rope.rotated * math.log(span) / (2 * math.log(rope.theta))

    low, high = pair_turning(s.beta_fast), pair_turning(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotated - 1)
    pairs = torch.arange(rope.rotated // 2, dtype=torch.float32)
    ramp = ((pairs - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return plain / s.factor * ramp + plain * (1 - ramp)


class RopeTable:
    """cos and sin of one rope."""

    def __init__(self, rope: Rope) -> None:
        self._frequencies = frequencies(rope)
        self._factor = rope.scaling.attention_factor if isinstance(rope.scaling, Yarn) else 1.0
        empty = torch.empty(0, rope.rotated // 2)
        self._cos, self._sin = empty, empty

    def rows(self, positions_T: Tensor, highest: int) -> tuple[Tensor, Tensor]:
        """(cos, sin), each float32 [T, rotated / 2]; `highest` is the greatest position among
        them.
        """
        while highest >= self._cos.shape[0]:
            self._grow()
        return self._cos.index_select(0, positions_T), self._sin.index_select(0, positions_T)

    def _grow(self) -> None:
        start = self._cos.shape[0]
        positions = torch.arange(start, start + BLOCK, dtype=torch.float32)
        angles = positions[:, None] * self._frequencies
        self._cos = torch.cat([self._cos, angles.cos() * self._factor])
        self._sin = torch.cat([self._sin, angles.sin() * self._factor])
