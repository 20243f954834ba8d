"""Which rows the next layer will want, guessed by its own router from the state before this layer's
experts; read ahead where such guesses have been right often enough.

Guesses are judged whether they were acted on or not, so that reading ahead can come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from torch import Tensor

from headrace.experts.tier import RowTier
from headrace.planning.facts import ExpertKey

# Urgent reads go first, so a wrong row delays a wanted one by no more than a piece; but it takes
# memory bandwidth from the kernels. Below this share of right guesses nothing is read ahead.
LEAST_RIGHT = 0.35
WEIGHT = 1 / 32  # of one guess in the running mean of a layer

Guess = Callable[[int, Tensor], Tensor | None]


class Foresight:
    """`look` while a layer's own rows are read, `judge` when the next one's routing is known."""

    def __init__(self, tier: RowTier, guess: Guess, *, always: bool = False) -> None:
        """`guess`: layer and the input of its experts -> ids [T, X] that the next MoE layer would
        choose, or None behind the last one. `always`: no guard.
        """
        self._tier, self._guess, self._always = tier, guess, always
        experts = tier.facts.experts
        moe = [layer for layer, count in enumerate(experts) if count]
        self._next = dict(pairwise(moe))
        self._share = [0.5] * len(experts)  # of guesses that were right, by layer
        self._guessed: dict[int, list[ExpertKey]] = {}
        self.guesses = self.right = self.asked = 0

    def look(self, layer: int, x_TD: Tensor) -> None:
        """Guesses what the next layer misses, and asks for it where that pays."""
        ids_TX = self._guess(layer, x_TD)
        if ids_TX is None:
            return
        tier, to = self._tier, self._next[layer]
        by_rank: Iterable[int] = dict.fromkeys(ids_TX.t().flatten().tolist())
        keys = [ExpertKey(to, expert) for expert in by_rank if expert >= 0]
        guessed = self._guessed[to] = tier.table.classify(keys)[1]
        if not self._always and self._share[to] < LEAST_RIGHT:
            return
        for key in guessed:
            if not tier.room:
                break
            tier.ask(key, urgent=False)
            self.asked += 1

    def judge(self, layer: int, active: Iterable[ExpertKey]) -> None:
        """These experts of the layer are used."""
        guessed = self._guessed.pop(layer, [])
        used = set(active)
        for key in guessed:
            right = key in used
            self._share[layer] += WEIGHT * (right - self._share[layer])
            self.right += right
        self.guesses += len(guessed)

    def status(self) -> dict[str, Any]:
        """Guesses of missing rows, how many were right, and how many were read ahead."""
        held = sum(self._share[to] < LEAST_RIGHT for to in self._next.values())
        return {
            "guesses": self.guesses,
            "right": self.right,
            "asked": self.asked,
            "layers_held_back": 0 if self._always else held,
        }
