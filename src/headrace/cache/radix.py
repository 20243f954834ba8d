"""One tree over token ids, a block of tokens per node: what two prompts share is stored once.

No node's tokens are a prefix of a sibling's, and only full nodes have children; `check` proves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.cache.blocks import Tables
from headrace.cache.conversations import Conversation


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A state as it was behind `offset` tokens of a node, in a state slot of its own: recurrent,
    and what layers with a window look back at."""

    slot: int  # ~n = slot n of the host tier
    node: Node
    offset: int
    windows: Tables = ()  # shared blocks of the device, or ~n = its own ones in the host tier
    hits: int = 0
    used: int = 0  # number of the request that used it last
    before: Checkpoint | None = None  # the nearest one that has seen a beginning of its tokens
    after: set[Checkpoint] = field(default_factory=set)  # those that it is the nearest one of

    @property
    def position(self) -> int:
        """Tokens that this state has seen."""
        return self.node.start + self.offset

    @property
    def gap(self) -> int:
        """Tokens that would have to be computed again without it."""
        return self.position - (0 if self.before is None else self.before.position)


@dataclass(slots=True, eq=False)
class Node:
    """At most a block of tokens from position `start` on, and the KV block that holds them."""

    tokens: tuple[int, ...]
    start: int
    block: int  # ~n = block n of the host tier
    parent: Node | None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    states: dict[int, Checkpoint] = field(default_factory=dict)  # by offset
    users: int = 0  # running sequences that read this block
    above: int = 0  # children that lie on the device
    owner: Conversation | None = None  # the weightiest that uses it
    used: int = 0  # number of the request that used it last
    alive: bool = True

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class RadixTree:
    """Nodes only: whoever uses it counts references and decides what leaves."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.root = Node((), 0, -1, None)
        self.count = 0  # of nodes, without the root

    def walk(self, tokens: Sequence[int], limit: int) -> tuple[list[Node], list[tuple[Node, int]]]:
        """The full nodes that the first `limit` tokens run through, and those that they enter:
        (child of the last full node, tokens in common)."""
        size, node = self.block_tokens, self.root
        path: list[Node] = []
        while node.end + size <= limit:
            child = node.children.get(tuple(tokens[node.end : node.end + size]))
            if child is None:
                break
            path.append(child)
            node = child
        rest = tokens[node.end : min(limit, node.end + size)]
        entered = ((child, _common(child.tokens, rest)) for child in node.children.values())
        return path, [(child, common) for child, common in entered if common]

    def covering(self, parent: Node, tokens: tuple[int, ...]) -> Node | None:
        """The child that begins with these tokens."""
        exact = parent.children.get(tokens)
        if exact is not None or len(tokens) == self.block_tokens:
            return exact
        n = len(tokens)
        return next((c for c in parent.children.values() if c.tokens[:n] == tokens), None)

    def covered(self, parent: Node, tokens: tuple[int, ...]) -> list[Node]:
        """Children whose tokens are the beginning of these."""
        size = self.block_tokens
        parts = (c for c in parent.children.values() if len(c.tokens) < min(size, len(tokens)))
        return [c for c in parts if tokens[: len(c.tokens)] == c.tokens]

    def add(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        """A new child; none covers it or is covered by it."""
        assert 0 < len(tokens) <= self.block_tokens
        assert parent.end % self.block_tokens == 0
        node = Node(tokens, parent.end, block, parent)
        parent.children[tokens] = node
        parent.above += block >= 0
        self.count += 1
        return node

    def remove(self, node: Node) -> None:
        """A node without children."""
        assert node.parent is not None
        assert node.alive
        assert not node.children
        del node.parent.children[node.tokens]
        node.parent.above -= node.block >= 0
        node.alive = False
        # Stale entries of heaps may name it for long: they must not hold its tokens, nor all above.
        node.parent, node.tokens = None, ()
        self.count -= 1

    def __iter__(self) -> Iterator[Node]:
        """All nodes, parents first, without the root."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert self.count == sum(1 for _ in self)
        for node in (self.root, *self):
            full = len(node.tokens) == self.block_tokens or node is self.root
            assert full or not node.children, "a node behind half a block"
            assert node.alive
            for tokens, child in node.children.items():
                assert child.parent is node
                assert child.tokens == tokens
                assert child.start == node.end
                assert not self.covered(node, tokens), "two siblings hold the same tokens"
                assert child.block < 0 or node is self.root or node.block >= 0, "a gap on a device"
            assert node.above == sum(child.block >= 0 for child in node.children.values())
            for offset, state in node.states.items():
                assert state.node is node
                assert state.offset == offset
                assert 0 < offset <= len(node.tokens)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
