"""How fast each pair of channels turns with the position, for every kind of rotary embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.models.spec import Divided, LinearScaling, Llama3Scaling, Proportional, Rope, Yarn


def frequencies(rope: Rope) -> Tensor:
    """Radians per position of each rotated pair, [rotated / 2], float32."""
    exponents = torch.arange(0, rope.rotated, 2, dtype=torch.float32) / rope.rotated
    plain = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Divided(divisors):
            return plain / torch.tensor(divisors)
        case Proportional(turning):
            return torch.where(torch.arange(rope.rotated // 2) < turning, plain, 0.0)
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


def angle_factor(rope: Rope) -> float:
    """What cos and sin are multiplied by."""
    return rope.scaling.attention_factor if isinstance(rope.scaling, Yarn) else 1.0
