"""What earlier sequences computed, for those that begin with the same tokens. No torch.

Full blocks are shared and never written again. The block in which a prompt leaves the cached text
is copied: a recurrent state fits one position only, and the tokens before it need their keys and
values. A block has one reference from the tree and one from each sequence that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cache.blocks import BlockPool
from headrace.cache.checkpoints import MOST_HITS, StateCheckpoints, gap, worth_now
from headrace.cache.leaves import Leaves, may_go
from headrace.cache.radix import Checkpoint, Node, RadixTree

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The part of a sequence that need not be computed."""

    tokens: int = 0
    path: tuple[Node, ...] = ()  # its full blocks
    tail: Node | None = None  # its last block, where the sequence goes on in the middle of it
    checkpoint: Checkpoint | None = None  # the state behind it


@dataclass(slots=True, eq=False)
class Lease:
    """What a running sequence holds; `node` is the last block of it that is in the tree."""

    node: Node
    blocks: tuple[int, ...]
    state: int  # -1 = the model has none

    def rename(self, blocks: Mapping[int, int], states: Mapping[int, int]) -> None:
        """Numbers have changed: old -> new."""
        if not blocks.keys().isdisjoint(self.blocks):
            self.blocks = tuple(blocks.get(block, block) for block in self.blocks)
        self.state = states.get(self.state, self.state)


@dataclass(frozen=True, slots=True)
class Copies:
    """(from, to) of blocks and of state slots, to be done in this order before anything else."""

    blocks: list[tuple[int, int]] = field(default_factory=list)
    states: list[tuple[int, int]] = field(default_factory=list)


class PrefixCache:
    """All blocks and state slots go through it: those of running sequences, those it keeps."""

    def __init__(
        self, blocks: BlockPool, states: BlockPool, block_tokens: int, *, on: bool
    ) -> None:
        self.blocks, self.states = blocks, states
        self.tree = RadixTree(block_tokens)
        self.checkpoints = StateCheckpoints()
        self.on = on
        self.hits = self.evictions = self.cached_tokens = 0
        self._recurrent = states.count > 0
        self._leaves = Leaves()
        self._busy = 0  # nodes with users
        self._copies = Copies()

    @property
    def idle_blocks(self) -> int:
        """Cached and used by nobody: free as soon as somebody needs them."""
        return self.tree.count - self._busy

    @property
    def spare_blocks(self) -> int:
        return self.blocks.free + self.idle_blocks

    @property
    def spare_states(self) -> int:
        return self.states.free + len(self.checkpoints)

    def match(self, tokens: Tokens) -> Prefix:
        """The longest usable beginning; the last token is always left to compute."""
        if not self.on:
            return Prefix()
        path, entered = self.tree.walk(tokens, len(tokens) - 1)
        if self._recurrent:
            return _deepest(path, entered)
        end = path[-1].end if path else 0
        tail, common = max(entered, key=lambda e: e[1], default=(None, 0))
        return Prefix(end + common, tuple(path), tail)

    def spare_beside(self, prefix: Prefix) -> int:
        """Blocks that are left once a sequence holds this prefix."""
        return self.spare_blocks - sum(node.users == 0 for node in prefix.path)

    def begin(self, prefix: Prefix, blocks: int) -> Lease:
        """So many blocks, those of the prefix included; the caller has seen that they are there."""
        self.checkpoints.requests += 1
        for node in prefix.path:
            self._use(node)
            self.blocks.share((node.block,))
        if prefix.tokens:
            self._hit(prefix)
        state = self._begin_state(prefix.checkpoint) if self._recurrent else -1
        own = self.take(blocks - len(prefix.path))
        if prefix.tail is not None:
            self._copies.blocks.append((prefix.tail.block, own[0]))
        node = prefix.path[-1] if prefix.path else self.tree.root
        return Lease(node, (*(n.block for n in prefix.path), *own), state)

    def grow(self, lease: Lease, blocks: int) -> bool:
        """To so many blocks; False, and nothing has changed, where they are not to be had."""
        more = blocks - len(lease.blocks)
        if more > self.spare_blocks:
            return False
        if more > 0:
            lease.blocks += self.take(more)
        return True

    def take(self, n: int) -> tuple[int, ...]:
        """Free blocks, after evictions where needed; the caller has looked at `spare_blocks`."""
        self.make_free(n)
        return self.blocks.take(n)

    def make_free(self, n: int) -> None:
        """Evict until so many blocks are free, or nothing is left to evict."""
        while self.blocks.free < n:
            node = self._leaves.pop()
            if node is None:
                return
            self.evictions += 1
            self._remove(node)

    def free_states(self, n: int) -> None:
        """Evict until so many state slots are free, or nothing is left to evict."""
        while self.states.free < n:
            least = self.checkpoints.least()
            if least is None:
                return
            self._evict(least)

    def keep(self, lease: Lease, tokens: Tokens, computed: int) -> None:
        """The full blocks of what is computed go into the tree.

        Where it has the same tokens already, the sequence reads those and gives its own back.
        """
        size, node = self.tree.block_tokens, lease.node
        if not self.on or node.end + size > computed:
            return
        blocks = list(lease.blocks)
        while node.end + size <= computed:
            i, part = node.end // size, tuple(tokens[node.end : node.end + size])
            child = self.tree.covering(node, part) or self._add(node, part, blocks[i])
            if child.block != blocks[i]:
                self.blocks.share((child.block,))
                self.blocks.release((blocks[i],))
                blocks[i] = child.block
            self._use(child)
            node = child
        lease.node = node
        if tuple(blocks) != lease.blocks:
            lease.blocks = tuple(blocks)

    def save(self, lease: Lease, tokens: Tokens, computed: int) -> None:
        """A copy of the state, if there is a slot for it or something of less worth in one."""
        if not self.on or not self._recurrent or computed == 0:
            return
        at = lease.node
        part = tuple(tokens[at.end : computed])
        found = self.tree.covering(at, part) if part else at
        offset = len(part) or len(at.tokens)
        if found is not None and offset in found.states:
            return
        # A slot first: what goes for it may be a neighbour of the place where this state belongs.
        if not self._slot_for(worth_now(gap(at, computed - at.start), at.hits)):
            return
        node = self._place(lease, part)
        if node is not None:
            (slot,) = self.states.take()
            self.checkpoints.put(node, offset, slot)
            self._copies.states.append((lease.state, slot))
            self._settle(node)

    def release(self, lease: Lease, tokens: Tokens, computed: int, *, state_valid: bool) -> None:
        """A sequence stops running; what it computed stays. `state_valid`: its state is that
        behind `computed` tokens."""
        if self.on and computed and (state_valid or not self._recurrent):
            self._keep_end(lease, tokens, computed)
        self.blocks.release(lease.blocks)
        if lease.state >= 0:
            self.states.release((lease.state,))
        node = lease.node
        while node.parent is not None:
            node.users -= 1
            self._busy -= node.users == 0
            if not node.users:
                self._leaves.rank(node)
            left, node = node, node.parent
            self._settle(left)
        self._leaves.compact(self.tree.count)

    def copies(self) -> Copies:
        """Those since the last call; to be done before anything else touches blocks or states."""
        made, self._copies = self._copies, Copies()
        return made

    def renamed(self, blocks: Mapping[int, int], states: Mapping[int, int]) -> None:
        """Numbers have changed: old -> new."""
        for node in self.tree if blocks else ():
            node.block = blocks.get(node.block, node.block)
        if states:
            self.checkpoints.renamed(states)

    def check(self, leases: Sequence[Lease]) -> None:
        """Raise AssertionError where an invariant is broken."""
        self.blocks.check()
        self.states.check()
        self.tree.check()
        nodes = list(self.tree)
        self.checkpoints.check(nodes)
        held = dict.fromkeys((node.block for node in nodes), 1)
        assert len(held) == len(nodes), "two nodes of one block"
        users = dict.fromkeys(nodes, 0)
        for lease in leases:
            assert len(lease.blocks) == len(set(lease.blocks))
            at = lease.node
            while at.parent is not None:
                assert lease.blocks[at.start // self._size] == at.block
                users[at] += 1
                at = at.parent
            for block in lease.blocks:
                held[block] = held.get(block, 0) + 1
            own = lease.blocks[lease.node.end // self._size :]
            assert all(held[b] == 1 for b in own), "a sequence writes into a shared block"
        assert users == {node: node.users for node in nodes}
        assert self._busy == sum(node.users > 0 for node in nodes)
        assert self.blocks.used == len(held)
        for block, n in held.items():
            assert self.blocks.holders(block) == n
        slots = [lease.state for lease in leases if lease.state >= 0]
        slots += [c.slot for c in self.checkpoints]
        assert len(slots) == len(set(slots)) == self.states.used
        if self._recurrent:
            dead = [n for n in nodes if not n.children and not n.users and not n.states]
            assert not dead, "blocks that no state makes usable"

    @property
    def _size(self) -> int:
        return self.tree.block_tokens

    def _hit(self, prefix: Prefix) -> None:
        self.hits += 1
        self.cached_tokens += prefix.tokens
        for node in (*prefix.path, *((prefix.tail,) if prefix.tail else ())):
            node.hits += 1
            self._leaves.rank(node)
        if prefix.tail is not None:
            self._settle(prefix.tail)
        if prefix.checkpoint is not None:
            self.checkpoints.touch(prefix.checkpoint)

    def _begin_state(self, source: Checkpoint | None) -> int:
        if not self.states.free:
            other = self.checkpoints.least(but=source)
            if other is None:
                assert source is not None, "the caller has looked at spare_states"
                # There is no other slot: the sequence goes on in the very state it begins with.
                slot = self.checkpoints.drop(source)
                self._settle(source.node)
                return slot
            self._evict(other)
        (slot,) = self.states.take()
        if source is not None:
            self._copies.states.append((source.slot, slot))
        return slot

    def _slot_for(self, worth: float) -> bool:
        """Whether a state of this worth gets a slot; one that is worth less goes for it."""
        if self.states.free:
            return True
        least = self.checkpoints.least()
        if least is None or self.checkpoints.worth(least) >= worth:
            return False
        self._evict(least)
        return True

    def _keep_end(self, lease: Lease, tokens: Tokens, computed: int) -> None:
        """The last, unfilled block and the state, without a copy: nobody writes to them now."""
        node, offset = lease.node, computed - lease.node.end
        if offset:
            part = tuple(tokens[node.end : computed])
            block = lease.blocks[node.end // self._size]
            node = self.tree.covering(node, part) or self._add(node, part, block)
        else:
            offset = len(node.tokens)
        if self._recurrent and offset not in node.states:
            self.checkpoints.put(node, offset, lease.state)
            lease.state = -1
        self._leaves.rank(node)
        self._settle(node)

    def _place(self, lease: Lease, part: tuple[int, ...]) -> Node | None:
        """The node that begins with what a sequence has of its unfilled block; a copy of that
        block, since the sequence goes on writing. None where no block is left."""
        if not part:
            return lease.node
        found = self.tree.covering(lease.node, part)
        if found is None and self.spare_blocks:
            (block,) = self.take(1)
            self._copies.blocks.append((lease.blocks[lease.node.end // self._size], block))
            found = self._add(lease.node, part, block)
            self.blocks.release((block,))  # the tree has a reference of its own
        return found

    def _add(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        """A node for these tokens, in place of those that hold a beginning of them."""
        shorter = self.tree.covered(parent, tokens)
        node = self.tree.add(parent, tokens, block)
        self.blocks.share((block,))
        for old in shorter:
            for checkpoint in list(old.states.values()):
                self.checkpoints.transfer(checkpoint, node)
            node.hits = max(node.hits, old.hits)
            self.tree.remove(old)
            self.blocks.release((old.block,))
        # A conversation goes on; where it parts from another one, perhaps.
        known = min(parent.hits, MOST_HITS)
        node.hits = max(node.hits, known if len(parent.children) == 1 else known // 2)
        self._leaves.rank(node)
        return node

    def _use(self, node: Node) -> None:
        self._busy += node.users == 0
        node.users += 1

    def _evict(self, checkpoint: Checkpoint) -> None:
        self.evictions += 1
        node = checkpoint.node
        self.states.release((self.checkpoints.drop(checkpoint),))
        self._settle(node)

    def _settle(self, node: Node) -> None:
        """A node has changed: a leaf that nobody uses may go, and does where it is worthless."""
        while may_go(node):
            if not self._recurrent or node.states:
                self._leaves.offer(node)
                return
            assert node.parent is not None
            node, dead = node.parent, node
            self.tree.remove(dead)
            self.blocks.release((dead.block,))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        for checkpoint in list(node.states.values()):
            self.states.release((self.checkpoints.drop(checkpoint),))
        self.tree.remove(node)
        self.blocks.release((node.block,))
        self._settle(parent)


def _deepest(path: list[Node], entered: list[tuple[Node, int]]) -> Prefix:
    """Up to the last state: without one the blocks are of no use to a recurrent model."""
    inside = [(o, node) for node, common in entered for o in node.states if o <= common]
    if inside:
        offset, node = max(inside, key=lambda found: found[0])
        return Prefix(node.start + offset, tuple(path), node, node.states[offset])
    for i in range(len(path) - 1, -1, -1):
        node = path[i]
        if node.states:
            offset = max(node.states)
            if offset == len(node.tokens):
                return Prefix(node.end, tuple(path[: i + 1]), None, node.states[offset])
            return Prefix(node.start + offset, tuple(path[:i]), node, node.states[offset])
    return Prefix()
