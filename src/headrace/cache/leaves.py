"""Which leaf of the tree goes first: of the conversation that is worth least now, what it used
longest ago. Every block saves the same tokens for the same bytes, so blocks are told apart by the
conversation alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from headrace.cache.conversations import Conversation, faded
from headrace.cache.radix import Node

Entry = tuple[int, int, Node]


class Leaves:
    """Nodes of one tier that may go. One that changed is offered again; old entries are skipped."""

    def __init__(self, may_go: Callable[[Node], bool]) -> None:
        self._may_go = may_go
        self._heaps: dict[Conversation, list[Entry]] = {}
        self._ticks = itertools.count()
        self._entries = 0
        self._victim: Conversation | None = None
        self._until = 0.0  # what the next one after the victim is worth
        self._chosen = -1  # the request at which that was so

    def offer(self, node: Node) -> None:
        assert node.owner is not None
        heapq.heappush(self._heaps.setdefault(node.owner, []), (node.used, next(self._ticks), node))
        self._entries += 1

    def pop(self, now: int) -> Node | None:
        """The least valuable leaf that nobody uses; None when there is none."""
        victim = self._victim
        stale = victim is None or now != self._chosen or not self._head(victim)
        if stale or (victim is not None and self._worth(victim, now) > self._until):
            victim = self._choose(now)
        if victim is None:
            return None
        self._entries -= 1
        return heapq.heappop(self._heaps[victim])[2]

    def compact(self, nodes: int) -> None:
        """Forget what is stale, where that is most of it."""
        if self._entries <= 64 + 4 * nodes:
            return
        for owner, heap in list(self._heaps.items()):
            heap[:] = [entry for entry in heap if self._valid(entry, owner)]
            heapq.heapify(heap)
            if not heap:
                del self._heaps[owner]
        self._entries = sum(map(len, self._heaps.values()))
        self._victim = None

    def _choose(self, now: int) -> Conversation | None:
        """Once for many: whole conversations go, not a block of each."""
        worths = [
            (self._worth(owner, now), i, owner)
            for i, owner in enumerate(list(self._heaps))
            if self._head(owner)
        ]
        least = heapq.nsmallest(2, worths, key=lambda w: w[:2])
        self._victim = least[0][2] if least else None
        self._until = least[1][0] if len(least) > 1 else float("inf")
        self._chosen = now
        return self._victim

    def _worth(self, owner: Conversation, now: int) -> float:
        return faded(owner.weight, now - self._heaps[owner][0][0])

    def _head(self, owner: Conversation) -> bool:
        """Whether it has a leaf that may go; it is the first of its heap then."""
        heap = self._heaps.get(owner)
        while heap:
            if self._valid(heap[0], owner):
                return True
            heapq.heappop(heap)
            self._entries -= 1
        if heap is not None:
            del self._heaps[owner]
        return False

    def _valid(self, entry: Entry, owner: Conversation) -> bool:
        used, _, node = entry
        return node.owner is owner and node.used == used and self._may_go(node)
