"""Which conversation a sequence belongs to, and what keeping it is worth. No torch.

A conversation is told by its beginning: what goes on behind its first exchange is the same one,
however it was edited since; a title request or a subagent that shares the system prompt is not.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_TURNS = 7  # more of them make nothing more valuable: what was popular must be able to age


@dataclass(slots=True, eq=False)
class Conversation:
    """One line of requests, each of which goes on from those before."""

    fork: int  # tokens that it shares with what was there before it
    tokens: int = 0  # of its longest sequence
    turns: int = 0  # behind the first

    @property
    def weight(self) -> float:
        """Tokens of its own that would be computed again, times the turns that came back."""
        return (1.0 + max(0, self.tokens - self.fork)) * (1 + min(self.turns, MOST_TURNS))

    def goes_on(self, common: int, opening: int) -> bool:
        """Whether a sequence with so many tokens in common with it is its next turn.

        `opening`: tokens of the sequence's first exchange; 0 = not known.
        """
        if opening:
            return common >= opening
        return 2 * common >= self.tokens

    def grown(self, tokens: int) -> None:
        self.tokens = max(self.tokens, tokens)


def faded(worth: float, age: int) -> float:
    """Worth by the requests since the last use (Blankstein et al. 2017, hyperbolic caching)."""
    return worth / (1 + age)
