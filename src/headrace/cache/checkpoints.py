"""Recurrent states that outlive their sequence: few slots, so the least valuable makes room.

A state is worth the tokens that would have to be computed again without it, times its uses, and
less with every request that did not need it (Blankstein et al. 2017, hyperbolic caching).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.cache.anchors import CLOSE
from headrace.cache.radix import Checkpoint, Node

MOST_HITS = 7  # more of them make nothing more valuable: what was popular must be able to age


class StateCheckpoints:
    """The checkpoints of one tree; their slots are held by it."""

    def __init__(self) -> None:
        self._all: dict[int, Checkpoint] = {}  # by slot
        self.requests = 0  # begun so far: the clock of this cache

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._all.values())

    def put(self, node: Node, offset: int, slot: int) -> Checkpoint:
        assert offset not in node.states, "a state is there already"
        assert slot not in self._all
        made = Checkpoint(slot, node, offset, used=self.requests)
        node.states[offset] = self._all[slot] = made
        return made

    def drop(self, checkpoint: Checkpoint) -> int:
        """Its slot, which nobody holds for it any more."""
        del checkpoint.node.states[checkpoint.offset]
        del self._all[checkpoint.slot]
        return checkpoint.slot

    def touch(self, checkpoint: Checkpoint) -> None:
        checkpoint.hits += 1
        checkpoint.used = self.requests

    def transfer(self, checkpoint: Checkpoint, node: Node) -> None:
        """To a node that begins with the same tokens and has no state there."""
        del checkpoint.node.states[checkpoint.offset]
        assert checkpoint.offset not in node.states
        node.states[checkpoint.offset] = checkpoint
        checkpoint.node = node

    def worth(self, checkpoint: Checkpoint) -> float:
        age = 1 + self.requests - checkpoint.used
        node = checkpoint.node
        hits = max(checkpoint.hits, node.hits)
        return worth_now(gap(node, checkpoint.offset), hits) / age

    def least(self, *, but: Checkpoint | None = None) -> Checkpoint | None:
        """The least valuable one, the oldest among equals."""
        others = [c for c in self._all.values() if c is not but]
        return min(others, key=lambda c: (self.worth(c), c.used), default=None)

    def renamed(self, moves: Mapping[int, int]) -> None:
        """Slots have other numbers now: old -> new."""
        for checkpoint in self._all.values():
            checkpoint.slot = moves.get(checkpoint.slot, checkpoint.slot)
        self._all = {c.slot: c for c in self._all.values()}

    def check(self, nodes: list[Node]) -> None:
        found = {c.slot: c for node in nodes for c in node.states.values()}
        assert found == self._all, "a state without a node, or a node whose state is gone"
        assert sum(len(node.states) for node in nodes) == len(found)


def worth_now(tokens: int, hits: int) -> float:
    """Of a state that saves so many tokens, on a path that was used so often.

    States lie close together where a conversation goes on, and there they are needed: few tokens
    count as `CLOSE`.
    """
    return float(max(CLOSE, tokens) * (1 + min(hits, MOST_HITS)))


def gap(node: Node, offset: int) -> int:
    """Tokens between a position and the nearest state before it, or the beginning."""
    position = node.start + offset
    at: Node | None = node
    while at is not None:
        before = [o for o in at.states if at.start + o < position]
        if before:
            return position - at.start - max(before)
        at = at.parent
    return position
