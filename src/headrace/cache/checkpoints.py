"""States that outlive their sequence, recurrent or of layers with a window: few slots, so the least
valuable makes room, for the host tier's slots where there are any.

A state is worth the tokens that would have to be computed again without it, times its uses, times
its conversation's weight, and less with every request that did not need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.cache.blocks import BlockPool, Tables
from headrace.cache.conversations import MOST_TURNS, Conversation, faded
from headrace.cache.lease import Copies
from headrace.cache.radix import Checkpoint, Node
from headrace.cache.windows import Windows

NEAR = 64  # tokens that a state saves at least, for its worth


class StateCheckpoints:
    """The checkpoints of one tree; their slots are held by it."""

    def __init__(
        self,
        slots: BlockPool,
        host: BlockPool,
        windows: Windows,
        copies: Copies,
        left: Callable[[Node], None],
    ) -> None:
        """`left` hears of nodes that have lost a state."""
        self.slots, self.host, self.windows = slots, host, windows
        self.now = 0  # requests begun so far: the clock of this cache
        self.evictions = 0
        self._copies, self._left = copies, left
        self._all: dict[int, Checkpoint] = {}  # by slot
        self._first: set[Checkpoint] = set()  # those with none before them

    @property
    def on_device(self) -> int:
        return len(self._all) - self.host.used

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._all.values())

    def put(self, node: Node, offset: int, slot: int, running: Tables) -> None:
        """A state that lies in this slot, which is the tree's from now on. `running`: what the
        sequence holds of windows."""
        assert offset not in node.states, "a state is there already"
        assert slot not in self._all
        made = Checkpoint(slot, node, offset, used=self.now, before=before(node, offset))
        made.windows = self.windows.keep(running, made.position, host=slot < 0)
        rivals = self._next_of(made.before)
        made.after = {c for c in rivals if _leads_to(made, c)}
        for later in made.after:
            later.before = made
        rivals -= made.after
        rivals.add(made)
        node.states[offset] = self._all[slot] = made

    def drop(self, checkpoint: Checkpoint) -> int:
        """Its slot, which nobody holds for it any more, as its blocks of windows."""
        self.windows.release(checkpoint.windows)
        rivals = self._next_of(checkpoint.before)
        rivals.discard(checkpoint)
        rivals |= checkpoint.after
        for later in checkpoint.after:
            later.before = checkpoint.before
        del checkpoint.node.states[checkpoint.offset]
        del self._all[checkpoint.slot]
        return checkpoint.slot

    def evict(self, checkpoint: Checkpoint) -> None:
        self.evictions += 1
        slot = self.drop(checkpoint)
        if slot < 0:
            self.host.release((~slot,))
        else:
            self.slots.release((slot,))
        self._left(checkpoint.node)

    def touch(self, checkpoint: Checkpoint) -> None:
        checkpoint.hits += 1
        checkpoint.used = self.now

    def transfer(self, checkpoint: Checkpoint, node: Node) -> None:
        """To a node that begins with the same tokens and has no state there."""
        del checkpoint.node.states[checkpoint.offset]
        assert checkpoint.offset not in node.states
        node.states[checkpoint.offset] = checkpoint
        checkpoint.node = node

    def worth(self, checkpoint: Checkpoint) -> float:
        """Now."""
        uses = 1 + min(checkpoint.hits, MOST_TURNS)
        owner = checkpoint.node.owner
        assert owner is not None
        return faded(uses * worth_now(checkpoint.gap, owner), self.now - checkpoint.used)

    def make_room(self, *, but: Checkpoint | None = None) -> bool:
        """One device slot fewer is used; False where there is none."""
        least = self._least(host=False, but=but)
        if least is None:
            return False
        self._part_with(least, but=but)
        return True

    def make_host_room(self) -> None:
        """One host slot fewer is used."""
        least = self._least(host=True)
        assert least is not None
        self.evict(least)

    def slot_for(self, worth: float) -> int | None:
        """A slot for a state of this worth: of the device, else of the host, else None. What is
        worth less goes for it."""
        slot = self.device_slot(worth)
        if slot is not None:
            return slot
        return ~self.host.take()[0] if self._host_room(worth) else None

    def device_slot(self, worth: float) -> int | None:
        """A slot of the device for a state of this worth, None where there is none."""
        if not self.slots.free:
            least = self._least(host=False)
            if least is not None and (self.worth(least) < worth or self._host_room(worth)):
                self._part_with(least)
        return self.slots.take()[0] if self.slots.free else None

    def renamed(self, moves: Mapping[int, int]) -> None:
        """Slots have other numbers now: old -> new."""
        for checkpoint in self._all.values():
            checkpoint.slot = moves.get(checkpoint.slot, checkpoint.slot)
        self._all = {c.slot: c for c in self._all.values()}

    def check(self, nodes: Sequence[Node]) -> None:
        found = {c.slot: c for node in nodes for c in node.states.values()}
        assert found == self._all, "a state without a node, or a node whose state is gone"
        assert sum(len(node.states) for node in nodes) == len(found)
        assert {~slot for slot in found if slot < 0} == self.host.held()
        for c in found.values():
            assert c.before is before(c.node, c.offset)
            assert c in self._next_of(c.before)
        assert len(self._first) + sum(len(c.after) for c in found.values()) == len(found)

    def _part_with(self, checkpoint: Checkpoint, *, but: Checkpoint | None = None) -> None:
        """Off the device: to the host tier, if it is worth a slot there."""
        if not self._host_room(self.worth(checkpoint), but=but):
            self.evict(checkpoint)
            return
        slot = ~self.host.take()[0]
        self._copies.states.append((checkpoint.slot, slot))
        self.slots.release((checkpoint.slot,))
        held = checkpoint.windows
        checkpoint.windows = self.windows.spilled(held)
        self.windows.release(held)
        del self._all[checkpoint.slot]
        checkpoint.slot = slot
        self._all[slot] = checkpoint

    def _host_room(self, worth: float, *, but: Checkpoint | None = None) -> bool:
        """Whether a host slot is free, after an eviction of less worth where needed."""
        if not self.host.free:
            least = self._least(host=True, but=but)
            if least is None or self.worth(least) >= worth:
                return False
            self.evict(least)
        return True

    def _least(self, *, host: bool, but: Checkpoint | None = None) -> Checkpoint | None:
        """The least valuable one of a tier, the oldest among equals."""
        if host and not self.host.used:
            return None
        some = [c for c in self._all.values() if (c.slot < 0) == host and c is not but]
        return min(some, key=lambda c: (self.worth(c), c.used), default=None)

    def _next_of(self, checkpoint: Checkpoint | None) -> set[Checkpoint]:
        return self._first if checkpoint is None else checkpoint.after


def worth_now(tokens: int, owner: Conversation) -> float:
    """Of a state that saves so many tokens of a conversation.

    States lie close together where a conversation goes on, and there they are needed: few tokens
    count as `NEAR`.
    """
    return max(NEAR, tokens) * math.sqrt(owner.weight)


def before(node: Node, offset: int) -> Checkpoint | None:
    """The nearest state before a position."""
    position = node.start + offset
    at: Node | None = node
    while at is not None:
        if at.states:
            offsets = [o for o in at.states if at.start + o < position]
            if offsets:
                return at.states[max(offsets)]
        at = at.parent
    return None


def _leads_to(first: Checkpoint, later: Checkpoint) -> bool:
    """Whether `later` has seen all that `first` has."""
    if first.node is later.node:
        return first.offset < later.offset
    at: Node | None = later.node
    while at is not None and at.start > first.node.start:
        at = at.parent
    return at is first.node
