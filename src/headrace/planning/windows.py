"""Blocks of layers that look back at a window only: few per sequence, however long it is. No torch.

Invariant: sequences that have a state slot each never lack such a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.planning.facts import ModelFacts


@dataclass(frozen=True, slots=True)
class Window:
    """One size of window, and what it needs in blocks."""

    tokens: int  # looked back at, itself counted
    each: int  # per state slot: of a sequence between two steps, and of a saved state
    step: int  # of the tokens that one step computes

    def blocks(self, slots: int) -> int:
        """For so many state slots."""
        return slots * self.each + self.step


def windows_of(
    facts: ModelFacts, *, block_tokens: int, context: int, step_tokens: int
) -> tuple[Window, ...]:
    """One per size of window in `facts`, the smallest first; `context`: of the longest sequence."""
    step = -(-step_tokens // block_tokens)
    return tuple(
        Window(tokens, blocks_each(tokens, block_tokens, context), step)
        for tokens in sorted(facts.window_elements())
    )


def blocks_each(window: int, block_tokens: int, context: int) -> int:
    """Window - 1 tokens lie in at most (window - 3) / block + 2 blocks; and one that is copied,
    where a sequence goes on in the middle of a saved block."""
    return min(-(-context // block_tokens), -(-(window - 1) // block_tokens) + 2)


def window_bytes(facts: ModelFacts, *, block_tokens: int, context: int, element_bytes: int) -> int:
    """Keys and values of all windows, per state slot."""
    return sum(
        blocks_each(window, block_tokens, context) * block_tokens * elements * element_bytes
        for window, elements in facts.window_elements().items()
    )
