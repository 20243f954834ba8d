"""What is found for a sequence, what it holds while it runs, and what must be copied for it.

Of blocks and state slots, n >= 0 names number n of the device and ~n < 0 number n of the host tier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.cache.blocks import Table, Tables
from headrace.cache.conversations import Conversation
from headrace.cache.radix import Checkpoint, Node


@dataclass(frozen=True, slots=True)
class Prefix:
    """The part of a sequence that need not be computed."""

    tokens: int = 0
    path: tuple[Node, ...] = ()  # its full blocks
    tail: Node | None = None  # its last block, where the sequence goes on in the middle of it
    checkpoint: Checkpoint | None = None  # the state behind it
    length: int = 0  # of the sequence
    owner: Conversation | None = None  # that it goes on with; None = it begins one
    common: int = 0  # tokens that are in the tree, with a state behind them or not

    @property
    def resident(self) -> int:
        """Blocks of the path that lie on the device."""
        return sum(node.block >= 0 for node in self.path)


class Cut(NamedTuple):
    """A position of a sequence, tokens before it, and the slot that gets its state there."""

    position: int
    slot: int


@dataclass(slots=True, eq=False)
class Lease:
    """What a running sequence holds; `node` is the last block of it that is in the tree."""

    node: Node
    blocks: tuple[int, ...]
    state: int  # -1 = the model has none
    owner: Conversation
    windows: Tables  # blocks of layers with a window, one table per size of it
    cuts: tuple[Cut, ...] = ()  # of the step that is computed now, ascending

    def rename(self, moves: Moves) -> None:
        if not moves.blocks.keys().isdisjoint(self.blocks):
            self.blocks = renamed(self.blocks, moves.blocks)
        self.state = moves.states.get(self.state, self.state)
        self.windows = moved(self.windows, moves.windows)


@dataclass(frozen=True, slots=True)
class Moves:
    """Old number -> new one: of blocks, of state slots, and of blocks by the size of the window."""

    blocks: Mapping[int, int]
    states: Mapping[int, int]
    windows: Sequence[Mapping[int, int]] = ()


Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Copies:
    """(from, to) of blocks, of state slots, and of blocks by the window's tokens, to be done in
    this order before anything else."""

    blocks: list[Pair] = field(default_factory=list)
    states: list[Pair] = field(default_factory=list)
    windows: dict[int, list[Pair]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.blocks or self.states or self.windows)

    def drain(self) -> Copies:
        """All so far; they are no longer in here."""
        made = Copies(self.blocks[:], self.states[:], dict(self.windows))
        for all_of in (self.blocks, self.states, self.windows):
            all_of.clear()
        return made


def moved(tables: Tables, moves: Sequence[Mapping[int, int]]) -> Tables:
    """With the numbers that blocks have now."""
    return tuple(
        Table(table.first, renamed(table.blocks, of)) if of else table
        for table, of in zip(tables, moves, strict=True)
    )


def renamed(numbers: tuple[int, ...], moves: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(moves.get(number, number) for number in numbers)
