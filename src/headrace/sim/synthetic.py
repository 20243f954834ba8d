"""Made-up routing that repeats itself as real routing does.

A router logit is a sum of parts that last for different times: an expert's popularity, the topic of
a sequence, two drifting parts, and noise of one token. The top-k of the sum are chosen, so skew,
locality and drift come from five widths. `MEASURED` was fitted to published hit rates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.planning.trace import RoutingTrace, TraceModel

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Standard deviations of the parts of a logit; the noise of a token has 1."""

    popularity: float  # of an expert, for ever
    topic: float  # for one sequence
    slow: float  # drifts: correlation `slow_keep` from token to token
    slow_keep: float
    fast: float
    fast_keep: float
    spread: float  # between layers: log-normal width of all but popularity and noise


# Fitted to LRU and Belady of a Qwen3-30B-A3B at four cache sizes; docs/simulator.md has the table.
MEASURED = Recipe(0.56, 1.38, 0.99, 0.91, 0.46, 0.64, 0.14)

MIB = 1 << 20
SHAPES = {
    "qwen3-30b-a3b": TraceModel("qwen3-30b-a3b", (128,) * 48, (8,) * 48, (9 * MIB,) * 48),
    "qwen3.6": TraceModel("qwen3.6", (256,) * 40, (8,) * 40, (6 * MIB,) * 40),
    "deepseek-v4-flash": TraceModel(
        "deepseek-v4-flash", (256,) * 43, (6,) * 43, (13_369_344,) * 43
    ),
    "gpt-oss-20b": TraceModel("gpt-oss-20b", (32,) * 24, (4,) * 24, (13_236_480,) * 24),
}


def shape(name: str) -> TraceModel:
    """A known model by name. Raises ConfigError."""
    if name not in SHAPES:
        raise ConfigError(f"no synthetic model {name!r}", expected="one of " + ", ".join(SHAPES))
    return SHAPES[name]


def generate(
    model: TraceModel,
    *,
    recipe: Recipe = MEASURED,
    sequences: int = 4,
    prompt: int = 32,
    decode: int = 128,
    seed: int = 0,
) -> RoutingTrace:
    """`sequences` one after another: a prompt of `prompt` tokens in one step, then `decode` steps.

    Every MoE layer must have the same number of experts. The same seed, the same trace.
    """
    layers = model.moe_layers
    experts, top_k = max(model.experts), model.widest
    if {model.experts[layer] for layer in layers} != {experts}:
        raise ConfigError("layers of different expert counts", expected="the same in all layers")
    if sequences < 1 or decode < 1 or prompt < 0:
        raise ConfigError(
            f"{sequences} sequences of {prompt} + {decode} tokens", expected="at least 1 x (0 + 1)"
        )
    rng = np.random.default_rng(seed)
    size = (len(layers), experts)
    popular = _normal(rng, size) * recipe.popularity
    strength = np.exp(_normal(rng, (len(layers), 1)) * recipe.spread)
    ids = np.empty((sequences, prompt + decode, len(layers), top_k), np.uint16)
    for sequence in range(sequences):
        topic = _normal(rng, size) * recipe.topic
        slow, fast = _normal(rng, size), _normal(rng, size)
        for token in range(prompt + decode):
            lasting = topic + recipe.slow * slow + recipe.fast * fast
            logits = popular + strength * lasting + _normal(rng, size)
            ids[sequence, token] = _best(logits, top_k)
            slow = _drifted(rng, slow, recipe.slow_keep)
            fast = _drifted(rng, fast, recipe.fast_keep)
    each = ([prompt] if prompt else []) + [1] * decode
    marks = np.arange(prompt + decode) < prompt
    return RoutingTrace(
        model,
        np.array(each * sequences, np.uint32),
        np.tile(marks, sequences),
        ids.reshape(-1, len(layers), top_k),
    )


def _normal(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    return rng.standard_normal(size, dtype=np.float32)


def _drifted(rng: np.random.Generator, part: Array, keep: float) -> Array:
    """One step of a stationary first-order process of variance 1."""
    new: Array = np.float32(keep) * part + np.float32((1 - keep**2) ** 0.5) * _normal(
        rng, part.shape
    )
    return new


def _best(logits: Array, top_k: int) -> NDArray[np.intp]:
    """Ids of the largest of each row, largest first."""
    picked = np.argpartition(-logits, top_k - 1, axis=1)[:, :top_k]
    order = np.argsort(-np.take_along_axis(logits, picked, 1), axis=1)
    return np.take_along_axis(picked, order, 1)
