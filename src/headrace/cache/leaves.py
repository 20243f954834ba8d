"""Which leaf of the tree goes first: the least valuable, by GreedyDual (Young 1994, Cao and Irani
1997). Every block saves the same tokens for the same bytes, so its worth is how often it was used;
what was evicted last sets the floor that everything newer starts from.
"""

from __future__ import annotations

import heapq
import itertools

from headrace.cache.checkpoints import MOST_HITS
from headrace.cache.radix import Node


class Leaves:
    """Nodes that may go, in order. One that changed is offered again; old entries are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Node]] = []
        self._ticks = itertools.count()
        self._floor = 0.0

    def rank(self, node: Node) -> None:
        """As of its use just now."""
        node.rank = self._floor + 1 + min(node.hits, MOST_HITS)

    def offer(self, node: Node) -> None:
        heapq.heappush(self._heap, (node.rank, next(self._ticks), node))

    def pop(self) -> Node | None:
        """The least valuable leaf that nobody uses; None when there is none."""
        while self._heap:
            rank, _, node = heapq.heappop(self._heap)
            if node.rank == rank and may_go(node):
                self._floor = rank
                return node
        return None

    def compact(self, nodes: int) -> None:
        """Forget what is stale, where that is most of it."""
        if len(self._heap) > 64 + 4 * nodes:
            self._heap = [e for e in self._heap if e[2].rank == e[0] and may_go(e[2])]
            heapq.heapify(self._heap)


def may_go(node: Node) -> bool:
    return node.alive and node.parent is not None and not node.children and not node.users
