"""Blocks of windows by themselves: what they hold is played by lists."""

from __future__ import annotations

from headrace.cache.blocks import BlockPool, Tables
from headrace.cache.lease import Copies
from headrace.cache.radix import Checkpoint, Node
from headrace.cache.windows import Windows
from headrace.planning.windows import Window

SIZE, WINDOW = 2, 5


def never() -> bool:
    raise AssertionError("there is room")


class Played:
    """`cells[block]`: who wrote it."""

    def __init__(self, slots: int, host_slots: int) -> None:
        self.copies = Copies()
        pools = (BlockPool(slots), BlockPool(host_slots))
        kinds = [Window(WINDOW, 4, 2)]
        self.windows = Windows(kinds, SIZE, pools, self.copies, first=1)
        self.cells: dict[int, str] = {}

    def run(self, name: str, tokens: int) -> Tables:
        tables = self.windows.begin(None, never)
        for end in range(1, tokens + 1):
            tables = self.windows.grow(tables, end, never)
            self.cells[tables[0].blocks[-1]] = f"{name}{(end - 1) // SIZE}"
            tables = self.windows.trim(tables, end)
        return tables

    def copy(self) -> None:
        for old, new in self.copies.drain().windows.get(WINDOW, []):
            self.cells[new] = self.cells[old]

    def held(self, tables: Tables) -> list[str]:
        return [self.cells[block] for block in tables[0].blocks]


def saved(position: int, slot: int, windows: Tables) -> Checkpoint:
    node = Node((0,) * position, 0, 1, None)
    return Checkpoint(slot, node, position, windows=windows)


def test_a_sequence_holds_its_window() -> None:
    played = Played(3, 0)
    tables = played.run("a", 100)
    assert tables[0].first == 48  # its next token looks back at 96 to 99
    assert played.held(tables) == ["a48", "a49"]
    played.windows.check([tables], [])


def test_a_saved_window_shares_and_is_gone_on_from_by_copy() -> None:
    played = Played(3, 0)
    tables = played.run("a", 9)
    state = saved(9, 0, played.windows.keep(tables, 9, host=False))
    assert state.windows[0].blocks == tables[0].blocks
    assert not played.copies
    other = played.windows.begin(state, never)
    played.copy()
    assert played.held(other) == ["a2", "a3", "a4"]
    *shared, own = other[0].blocks
    assert shared == list(tables[0].blocks[:2])
    assert own not in tables[0].blocks  # the one that both go on writing in
    played.windows.check([tables, other], [state])
    for each in (tables, other, state.windows):
        played.windows.release(each)
    played.windows.check([], [])


def test_what_the_host_tier_holds_moves_when_it_shrinks() -> None:
    played = Played(3, 3)
    states = []
    for slot, name in enumerate("abc"):
        tables = played.run(name, 9)
        states.append(saved(9, ~slot, played.windows.keep(tables, 9, host=True)))
        played.windows.release(tables)
        played.copy()
    first, second, third = states
    for gone in (first, second):
        played.windows.release(gone.windows)
    before = third.windows[0].blocks
    played.windows.resize_host(1, [third])
    played.copy()
    assert third.windows[0].blocks != before
    assert all(~block < 4 for block in third.windows[0].blocks)
    assert played.held(third.windows) == ["c2", "c3", "c4"]
    played.windows.check([], [third])
    tables = played.windows.begin(third, never)
    played.copy()
    assert played.held(tables) == ["c2", "c3", "c4"]


def test_saved_windows_make_room() -> None:
    played, states = Played(2, 0), []
    for slot, name in enumerate("ab"):
        tables = played.run(name, 9)
        states.append(saved(9, slot, played.windows.keep(tables, 9, host=False)))
        played.windows.release(tables)

    def room() -> bool:
        played.windows.release(states.pop().windows)
        return True

    tables = played.windows.grow(played.windows.begin(None, room), 11, room)
    assert len(tables[0].blocks) == 6
    assert played.held(states[0].windows) == ["a2", "a3", "a4"]
    played.windows.check([tables], states)
