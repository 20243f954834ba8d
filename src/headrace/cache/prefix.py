"""What earlier sequences computed, for those that begin with the same tokens. No torch.

Full blocks are shared and never written again. The block in which a prompt leaves the cached text
is copied: a state, recurrent or of windows, fits one position only, and the tokens before it need
their keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from headrace.cache.blocks import BlockPool
from headrace.cache.checkpoints import before, worth_now
from headrace.cache.conversations import Conversation
from headrace.cache.lease import Copies, Cut, Lease, Moves, Prefix
from headrace.cache.radix import Checkpoint, Node
from headrace.cache.store import BlockStore
from headrace.planning.windows import Window

Tokens = Sequence[int]


class PrefixCache:
    """All blocks and state slots go through it: those of running sequences, those it keeps."""

    def __init__(
        self,
        blocks: BlockPool,
        states: BlockPool,
        block_tokens: int,
        *,
        on: bool,
        host_blocks: int = 0,
        host_states: int = 0,
        windows: Sequence[Window] = (),
    ) -> None:
        """`host_blocks`, `host_states`: what the host tier holds, 0 = there is none. A model with
        `windows` has states, too."""
        assert states.count or not windows
        self.blocks, self.states = blocks, states
        slots = BlockPool(host_states if states.count else 0)
        host = BlockPool(host_blocks)
        self._store = BlockStore(blocks, host, (states, slots), block_tokens, windows)
        self.windows = self._store.windows
        self.tree = self._store.tree
        self.checkpoints = self._store.checkpoints
        self.on = on
        self.hits = self.cached_tokens = 0
        self._stateful = states.count > 0

    @property
    def store(self) -> BlockStore:
        return self._store

    @property
    def evictions(self) -> int:
        """Blocks and states that are gone."""
        return self._store.evictions + self.checkpoints.evictions

    @property
    def idle_blocks(self) -> int:
        """Cached and used by nobody: free as soon as somebody needs them."""
        return self._store.idle

    @property
    def spare_blocks(self) -> int:
        return self.blocks.free + self.idle_blocks

    @property
    def spare_states(self) -> int:
        return self.states.free + self.checkpoints.on_device

    def match(self, tokens: Tokens, opening: int = 0) -> Prefix:
        """The longest usable beginning; the last token is always left to compute.

        `opening`: tokens of the conversation's first exchange, 0 = not known.
        """
        if not self.on:
            return Prefix(length=len(tokens))
        path, entered = self.tree.walk(tokens, len(tokens) - 1)
        tail, inside = max(entered, key=lambda e: e[1], default=(None, 0))
        last = tail or (path[-1] if path else None)
        common = (path[-1].end if path else 0) + inside
        owner = None if last is None else last.owner
        if owner is not None and not owner.goes_on(common, opening):
            owner = None
        if self._stateful:
            at, full, tail, checkpoint = _deepest(path, entered)
            return Prefix(at, full, tail, checkpoint, len(tokens), owner, common)
        return Prefix(common, tuple(path), tail, None, len(tokens), owner, common)

    def spare_beside(self, prefix: Prefix) -> int:
        """Blocks that are left once a sequence holds this prefix."""
        return self.spare_blocks - sum(n.users == 0 and n.block >= 0 for n in prefix.path)

    def begin(self, prefix: Prefix, blocks: int) -> Lease:
        """So many blocks, those of the prefix included; the caller has seen that they are there."""
        store, path, tail = self._store, prefix.path, prefix.tail
        owner = self._owner(prefix)
        for node in path:
            store.use(node)
        if tail is not None:
            read = tail.block
            pinned = read < 0
            tail.users += pinned  # or its place in the host tier might be given away
        if prefix.tokens:
            self._hit(prefix, owner)
        # Windows first: the state may be taken from the very checkpoint.
        source = prefix.checkpoint
        windows = self.windows.begin(source, lambda: self.checkpoints.make_room(but=source))
        state = self._begin_state(source) if self._stateful else -1
        taken = store.take(blocks - prefix.resident)
        own, returning = taken[: blocks - len(path)], list(taken[blocks - len(path) :])
        if tail is not None:
            # Before anything is brought back, which may be into the block that this is read from.
            store.copies.blocks.append((read, own[0]))
            tail.users -= pinned
            store.settle(tail)
        for node in path:
            if node.block < 0:
                store.bring_back(node, returning.pop())
            self.blocks.share((node.block,))
        node = path[-1] if path else self.tree.root
        return Lease(node, (*(n.block for n in path), *own), state, owner, windows)

    def grow(self, lease: Lease, tokens: int) -> bool:
        """For so many tokens; False, and nothing has changed, where it is not to be had."""
        more = -(-tokens // self.tree.block_tokens) - len(lease.blocks)
        if more > self.spare_blocks:
            return False
        if more > 0:
            lease.blocks += self.take(more)
        if lease.windows:
            lease.windows = self.windows.grow(lease.windows, tokens, self.checkpoints.make_room)
        return True

    def trim(self, lease: Lease, computed: int) -> None:
        """Give back what lies behind the windows of all tokens to come."""
        if lease.windows:
            lease.windows = self.windows.trim(lease.windows, computed)

    def take(self, n: int) -> tuple[int, ...]:
        """Free blocks, after evictions where needed; the caller has looked at `spare_blocks`."""
        return self._store.take(n)

    def make_free(self, n: int) -> None:
        """Evict until so many blocks are free, or nothing is left to evict."""
        self._store.make_free(n)

    def free_states(self, n: int) -> None:
        """Evict until so many state slots are free, or nothing is left to evict."""
        while self.states.free < n and self.checkpoints.make_room():
            pass

    def keep(self, lease: Lease, tokens: Tokens, computed: int) -> None:
        """The full blocks of what is computed go into the tree.

        Where it has the same tokens already, the sequence reads those and gives its own back.
        """
        size, node = self.tree.block_tokens, lease.node
        if not self.on or node.end + size > computed:
            return
        store, blocks = self._store, list(lease.blocks)
        while node.end + size <= computed:
            i, part = node.end // size, tuple(tokens[node.end : node.end + size])
            child = self.tree.covering(node, part)
            if child is None:
                child = store.add(node, part, blocks[i], lease.owner)
            elif child.block < 0:
                store.adopt(child, blocks[i])
            if child.block != blocks[i]:
                self.blocks.share((child.block,))
                self.blocks.release((blocks[i],))
                blocks[i] = child.block
            store.use(child)
            store.touch(child, lease.owner)
            node = child
        lease.node = node
        if tuple(blocks) != lease.blocks:
            lease.blocks = tuple(blocks)

    def reserve(self, lease: Lease, computed: int, positions: Sequence[int]) -> tuple[Cut, ...]:
        """Slots of the device for the states of a step at these positions behind `computed`, the
        last ones first, as many as are worth it. They are the lease's until `save_cuts`."""
        if not self.on or not positions:
            return ()
        lease.owner.grown(positions[-1])
        last = before(lease.node, computed + 1 - lease.node.start)
        cuts: list[Cut] = []
        for start, at in reversed(list(pairwise((last.position if last else 0, *positions)))):
            slot = self.checkpoints.device_slot(worth_now(at - start, lease.owner))
            if slot is not None:
                cuts.insert(0, Cut(at, slot))
        lease.cuts = tuple(cuts)
        return lease.cuts

    def save_cuts(self, lease: Lease, tokens: Tokens) -> None:
        """The states that a step has left in the slots reserved for it."""
        cuts, lease.cuts = lease.cuts, ()
        for cut in reversed(cuts):
            self._put(lease, tokens, cut)

    def save(self, lease: Lease, tokens: Tokens, computed: int) -> None:
        """A copy of the state, if there is a slot for it or something of less worth in one."""
        if not self.on or not self._stateful or computed == 0:
            return
        at = lease.node
        part = tuple(tokens[at.end : computed])
        found = self.tree.covering(at, part) if part else at
        if found is not None and (len(part) or len(at.tokens)) in found.states:
            return
        last = before(at, computed - at.start)
        lease.owner.grown(computed)
        worth = worth_now(computed - (last.position if last else 0), lease.owner)
        # A slot first: what goes for it may be a neighbour of the place where this state belongs.
        slot = self.checkpoints.slot_for(worth)
        if slot is not None and self._put(lease, tokens, Cut(computed, slot)):
            self._store.copies.states.append((lease.state, slot))

    def release(self, lease: Lease, tokens: Tokens, computed: int, *, state_valid: bool) -> None:
        """A sequence stops running; what it computed stays. `state_valid`: its state is that
        behind `computed` tokens."""
        lease.owner.grown(computed)
        if self.on and computed and (state_valid or not self._stateful):
            self._keep_end(lease, tokens, computed)
        self.blocks.release(lease.blocks)
        self.windows.release(lease.windows)
        self.states.release(cut.slot for cut in lease.cuts)
        if lease.state >= 0:
            self.states.release((lease.state,))
        node = lease.node
        while node.parent is not None:
            left, node = node, node.parent
            self._store.leave(left)
        self._store.compact()

    def copies(self) -> Copies:
        """Those since the last call; to be done before anything else touches blocks or states."""
        return self._store.copies.drain()

    def resize(self, blocks: int, states: int, leases: Sequence[Lease]) -> Moves:
        """Between steps; `leases`, of all that run, leave room for that many. What is copied comes
        before what moves."""
        self.make_free(self.blocks.count - blocks)
        self.free_states(self.states.count - states)
        windows = self.windows.resize(states, self.checkpoints.make_room)
        moves = Moves(self.blocks.resize(blocks), self.states.resize(states), windows)
        self._store.renamed(moves.blocks)
        if moves.states:
            self.checkpoints.renamed(moves.states)
        self.windows.renamed(self.checkpoints, windows)
        for lease in leases:
            lease.rename(moves)
        return moves

    def check(self, leases: Sequence[Lease]) -> None:
        """Raise AssertionError where an invariant is broken."""
        self.states.check()
        nodes = list(self.tree)
        held = {node.block: 1 for node in nodes if node.block >= 0}
        users = dict.fromkeys(nodes, 0)
        for lease in leases:
            assert len(lease.blocks) == len(set(lease.blocks))
            at = lease.node
            while at.parent is not None:
                assert lease.blocks[at.start // self.tree.block_tokens] == at.block
                users[at] += 1
                at = at.parent
            for block in lease.blocks:
                held[block] = held.get(block, 0) + 1
            own = lease.blocks[lease.node.end // self.tree.block_tokens :]
            assert all(held[b] == 1 for b in own), "a sequence writes into a shared block"
        self._store.check(nodes, users)
        assert self.blocks.used == len(held)
        for block, n in held.items():
            assert self.blocks.holders(block) == n
        slots = [lease.state for lease in leases if lease.state >= 0]
        slots += [cut.slot for lease in leases for cut in lease.cuts]
        slots += [c.slot for c in self.checkpoints if c.slot >= 0]
        assert len(slots) == len(set(slots)) == self.states.used
        self.windows.check([lease.windows for lease in leases], self.checkpoints)

    def _owner(self, prefix: Prefix) -> Conversation:
        """The conversation that a sequence with this prefix belongs to."""
        self.checkpoints.now += 1
        owner = prefix.owner
        if owner is None:
            owner = Conversation(prefix.common)
        else:
            owner.turns += 1
        owner.grown(prefix.length)
        return owner

    def _hit(self, prefix: Prefix, owner: Conversation) -> None:
        self.hits += 1
        self.cached_tokens += prefix.tokens
        for node in (*prefix.path, *((prefix.tail,) if prefix.tail else ())):
            self._store.touch(node, owner)
        if prefix.tail is not None:
            self._store.settle(prefix.tail)
        if prefix.checkpoint is not None:
            self.checkpoints.touch(prefix.checkpoint)

    def _begin_state(self, source: Checkpoint | None) -> int:
        if not self.states.free and not self.checkpoints.make_room(but=source):
            assert source is not None, "the caller has looked at spare_states"
            # There is no other slot: the sequence goes on in the very state it begins with.
            slot = self.checkpoints.drop(source)
            self._store.settle(source.node)
            return slot
        (slot,) = self.states.take()
        if source is not None:
            self._store.copies.states.append((source.slot, slot))
        return slot

    def _keep_end(self, lease: Lease, tokens: Tokens, computed: int) -> None:
        """The last, unfilled block and the state, without a copy: nobody writes to them now."""
        node, offset = lease.node, computed - lease.node.end
        if offset:
            part = tuple(tokens[node.end : computed])
            block = lease.blocks[node.end // self.tree.block_tokens]
            found = self.tree.covering(node, part)
            node = found or self._store.add(node, part, block, lease.owner)
        else:
            offset = len(node.tokens)
        if self._stateful and offset not in node.states:
            self.checkpoints.put(node, offset, lease.state, lease.windows)
            lease.state = -1
        if node.parent is not None:
            self._store.touch(node, lease.owner)
        self._store.settle(node)

    def _put(self, lease: Lease, tokens: Tokens, cut: Cut) -> bool:
        """A state of the sequence is the tree's. False, and its slot is free again, where there is
        one already or no block is left."""
        at: Node | None = lease.node
        while at is not None and at.end > cut.position:
            at = at.parent
        assert at is not None
        part = tuple(tokens[at.end : cut.position])
        offset = len(part) or len(at.tokens)
        node = self._place(lease, at, part)
        if node is None or offset in node.states:
            host = cut.slot < 0
            (self.checkpoints.host if host else self.states).release((max(cut.slot, ~cut.slot),))
            return False
        self.checkpoints.put(node, offset, cut.slot, lease.windows)
        self._store.settle(node)
        return True

    def _place(self, lease: Lease, at: Node, part: tuple[int, ...]) -> Node | None:
        """The node behind `at` that begins with this part of the sequence; where that is of its
        unfilled block a copy, since the sequence goes on writing. None where no block is left."""
        if not part:
            return at
        found = self.tree.covering(at, part)
        if found is None and self.spare_blocks:
            (block,) = self.take(1)
            source = lease.blocks[at.end // self.tree.block_tokens]
            self._store.copies.blocks.append((source, block))
            found = self._store.add(at, part, block, lease.owner)
            self.blocks.release((block,))  # the tree has a reference of its own
        return found


def _deepest(
    path: list[Node], entered: list[tuple[Node, int]]
) -> tuple[int, tuple[Node, ...], Node | None, Checkpoint | None]:
    """Up to the last state: without one the blocks are of no use to a model that has them."""
    inside = [(o, node) for node, common in entered for o in node.states if o <= common]
    if inside:
        offset, node = max(inside, key=lambda found: found[0])
        return node.start + offset, tuple(path), node, node.states[offset]
    for i in range(len(path) - 1, -1, -1):
        node = path[i]
        if node.states:
            offset = max(node.states)
            if offset == len(node.tokens):
                return node.end, tuple(path[: i + 1]), None, node.states[offset]
            return node.start + offset, tuple(path[:i]), node, node.states[offset]
    return 0, (), None, None
