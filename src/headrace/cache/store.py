"""The tree with the KV blocks under it, on the device and in the host tier. No torch.

On every path the device's blocks come first: what leaves the device is behind all that stays. A
block has one reference from the tree and one from each sequence that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.cache.blocks import BlockPool
from headrace.cache.checkpoints import StateCheckpoints
from headrace.cache.conversations import Conversation
from headrace.cache.lease import Copies
from headrace.cache.leaves import Leaves
from headrace.cache.radix import Node, RadixTree
from headrace.cache.windows import Windows
from headrace.planning.windows import Window


class BlockStore:
    """Nodes come and go here, and move between the tiers."""

    def __init__(
        self,
        blocks: BlockPool,
        host: BlockPool,
        states: tuple[BlockPool, BlockPool],
        size: int,
        windows: Sequence[Window],
    ) -> None:
        """`size`: tokens of a block; `states`: slots of the device and of the host tier."""
        self.blocks, self.host = blocks, host
        self.tree = RadixTree(size)
        self.copies = Copies()
        self.windows = Windows(windows, size, states, self.copies, first=blocks.first)
        self.checkpoints = StateCheckpoints(*states, self.windows, self.copies, self.settle)
        self.stateful = states[0].count > 0
        self.evictions = 0  # of blocks, out of the tree
        self.spills = self.returns = 0  # of blocks, to the host tier and back
        self._resident = 0  # nodes on the device
        self._busy = 0  # of these, with users
        self._leaves, self._host_leaves = Leaves(may_leave), Leaves(may_end)

    @property
    def idle(self) -> int:
        """Blocks of the device that nobody uses: free as soon as somebody needs them."""
        return self._resident - self._busy

    def use(self, node: Node) -> None:
        self._busy += node.users == 0 and node.block >= 0
        node.users += 1

    def leave(self, node: Node) -> None:
        node.users -= 1
        self._busy -= node.users == 0 and node.block >= 0
        self.settle(node)

    def touch(self, node: Node, owner: Conversation) -> None:
        """It is used by a request of this conversation."""
        node.used = self.checkpoints.now
        if node.owner is None or owner.weight >= node.owner.weight:
            node.owner = owner

    def make_free(self, n: int) -> None:
        """Part with blocks until so many are free, or nothing is left to part with."""
        while self.blocks.free < n:
            node = self._leaves.pop(self.checkpoints.now)
            if node is None:
                return
            if self._host_room():
                self._spill(node)
            else:
                self._prune(node)

    def take(self, n: int) -> tuple[int, ...]:
        """Free blocks; the caller has seen that they can be made free."""
        self.make_free(n)
        return self.blocks.take(n)

    def bring_back(self, node: Node, block: int) -> None:
        """From the host tier into a block that was taken; all before it lies on the device."""
        assert node.block < 0 <= block
        assert node.users
        assert node.parent is not None
        self.returns += 1
        self.copies.blocks.append((node.block, block))
        self.host.release((~node.block,))
        node.block = block
        node.parent.above += 1
        self._resident += 1
        self._busy += 1

    def adopt(self, node: Node, block: int) -> None:
        """A sequence has computed the very tokens of a node that is not on the device."""
        assert node.block < 0 <= block
        assert node.parent is not None
        self.host.release((~node.block,))
        self.blocks.share((block,))
        node.block = block
        node.parent.above += 1
        self._resident += 1
        self._busy += node.users > 0

    def add(self, parent: Node, tokens: tuple[int, ...], block: int, owner: Conversation) -> Node:
        """A node for these tokens, in place of those that hold a beginning of them."""
        shorter = self.tree.covered(parent, tokens)
        node = self.tree.add(parent, tokens, block)
        self.blocks.share((block,))
        self._resident += 1
        self.touch(node, owner)
        for old in shorter:
            for checkpoint in list(old.states.values()):
                self.checkpoints.transfer(checkpoint, node)
            assert old.owner is not None
            self.touch(node, old.owner)
            self._remove(old)
        return node

    def settle(self, node: Node) -> None:
        """A node has changed: where nobody uses it it may go, and does where it is worthless."""
        while node.alive and node.parent is not None and not node.users:
            if self.stateful and not node.children and not node.states:
                node, dead = node.parent, node
                self._remove(dead)
                continue
            if may_leave(node):
                self._leaves.offer(node)
            elif may_end(node):
                self._host_leaves.offer(node)
            return

    def compact(self) -> None:
        self._leaves.compact(self.tree.count)
        self._host_leaves.compact(self.tree.count)

    def renamed(self, blocks: Mapping[int, int]) -> None:
        """Blocks of the device have other numbers: old -> new."""
        for node in self.tree if blocks else ():
            node.block = blocks.get(node.block, node.block)

    def resize_host(self, blocks: int, states: int) -> None:
        """The host tier holds so many from now on; what it moves is listed in `copies`."""
        while self.host.used > blocks:
            node = self._host_leaves.pop(self.checkpoints.now)
            assert node is not None, "nothing in the host tier is in use between steps"
            self._prune(node)
        slots = self.checkpoints.host
        while slots.used > states:
            self.checkpoints.make_host_room()
        for pool, count, listed in (
            (self.host, blocks, self.copies.blocks),
            (slots, states, self.copies.states),
        ):
            moves = {~old: ~new for old, new in pool.resize(count).items()}
            listed += moves.items()
            if pool is self.host:
                self.renamed(moves)
            else:
                self.checkpoints.renamed(moves)
        self.windows.resize_host(states, self.checkpoints)

    def status(self) -> dict[str, int]:
        """Of the host tier; blocks total 0 where there is none."""
        states = self.checkpoints.host
        return {
            "blocks_used": self.host.used,
            "blocks_total": self.host.count,
            "states_used": states.used,
            "states_total": states.count,
            "spilled_blocks": self.spills,
            "returned_blocks": self.returns,
        }

    def check(self, nodes: list[Node], users: Mapping[Node, int]) -> None:
        """Raise AssertionError where an invariant is broken."""
        self.blocks.check()
        self.host.check()
        self.tree.check()
        self.checkpoints.check(nodes)
        assert users == {node: node.users for node in nodes}
        assert len({node.block for node in nodes}) == len(nodes), "two nodes of one block"
        assert {~node.block for node in nodes if node.block < 0} == self.host.held()
        assert self._resident == sum(node.block >= 0 for node in nodes)
        assert self._busy == sum(node.users > 0 for node in nodes if node.block >= 0)
        if self.stateful:
            dead = [n for n in nodes if not n.children and not n.users and not n.states]
            assert not dead, "blocks that no state makes usable"

    def _host_room(self) -> bool:
        if self.host.count and not self.host.free:
            last = self._host_leaves.pop(self.checkpoints.now)
            if last is not None:
                self._prune(last)
        return self.host.free > 0

    def _spill(self, node: Node) -> None:
        if not node.alive:  # it went with the last state that made room
            return
        self.spills += 1
        assert node.parent is not None
        (number,) = self.host.take()
        self.copies.blocks.append((node.block, ~number))
        self.blocks.release((node.block,))
        node.block = ~number
        node.parent.above -= 1
        self._resident -= 1
        self.settle(node)
        self.settle(node.parent)

    def _prune(self, node: Node) -> None:
        """Out of the tree, with all that lies behind it in the host tier."""
        if not node.alive:
            return
        parent, below = node.parent, [node]
        assert parent is not None
        for at in below:
            below += at.children.values()
        for at in reversed(below):
            self.evictions += 1
            at.users += 1  # nothing is settled on the way
            for checkpoint in list(at.states.values()):
                self.checkpoints.evict(checkpoint)
            at.users -= 1
            self._remove(at)
        self.settle(parent)

    def _remove(self, node: Node) -> None:
        self.tree.remove(node)
        if node.block < 0:
            self.host.release((~node.block,))
        else:
            self._resident -= 1
            self.blocks.release((node.block,))


def may_leave(node: Node) -> bool:
    """Whether the device may part with it."""
    free = node.alive and node.parent is not None and not node.users
    return free and node.block >= 0 and not node.above


def may_end(node: Node) -> bool:
    """Whether the host tier may."""
    return node.alive and not node.users and node.block < 0 and not node.children
