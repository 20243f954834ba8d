"""Whose turn it is: conversations, not requests, share the engine. No torch.

Each conversation has a counter of the tokens computed for it, and the one with the least goes first
(virtual token counters, Sheng et al. 2024). Whoever was away gains nothing by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Fairness:
    """Counters of the conversations that run or wait."""

    def __init__(self) -> None:
        self._work: dict[str, float] = {}
        self._present: Counter[str] = Counter()  # requests of each
        self._floor = 0.0  # of the last one that was let in

    def join(self, who: str, waiting: Iterable[str]) -> None:
        """One more request; `waiting`: whose requests wait already."""
        if not self._present[who]:
            others = [self._work[other] for other in waiting]
            self._work[who] = min(others, default=self._floor)
        self._present[who] += 1

    def leave(self, who: str) -> None:
        self._present[who] -= 1
        if not self._present[who]:
            del self._present[who], self._work[who]

    def admit(self, who: str, tokens: int) -> None:
        """It begins to compute so many tokens."""
        self._floor = self._work[who]
        self._work[who] += tokens

    def worked(self, who: str, tokens: int) -> None:
        self._work[who] += tokens

    def work(self, who: str) -> float:
        return self._work.get(who, 0.0)

    def check(self, present: Sequence[str]) -> None:
        assert Counter(present) == self._present
        assert self._work.keys() == self._present.keys()


def shares(
    prompts: Sequence[T], most: Callable[[T], int], who: Callable[[T], str], budget: int
) -> list[tuple[T, int]]:
    """Tokens of each prompt, at least one: equal for conversations, and equal within each of them.

    What a short one leaves goes to the longer ones. `budget`: at least the number of prompts.
    """
    groups: dict[str, list[T]] = {}
    for prompt in prompts:
        groups.setdefault(who(prompt), []).append(prompt)
    wants = [[most(prompt) - 1 for prompt in group] for group in groups.values()]
    parts = level([sum(group) for group in wants], budget - len(prompts))
    return [
        (prompt, 1 + n)
        for group, want, part in zip(groups.values(), wants, parts, strict=True)
        for prompt, n in zip(group, level(want, part), strict=True)
    ]


def level(wants: Sequence[int], total: int) -> list[int]:
    """Equal parts of `total`, but no more than is wanted; what one leaves goes to the others."""
    parts, left = [0] * len(wants), len(wants)
    for i in sorted(range(len(wants)), key=lambda i: wants[i]):
        parts[i] = min(wants[i], total // left)
        total -= parts[i]
        left -= 1
    return parts
