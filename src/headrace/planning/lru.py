"""SlotTable: which (layer, expert) lies in which device slot, for all layers at once.

The table keeps residency, the policy keeps order: every resident row is known to both, `check()`
says so. All policies stand behind one protocol, and the engine and the simulator run the same ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from itertools import accumulate
from typing import NamedTuple, Protocol

from headrace.errors import CapacityError
from headrace.planning.facts import ExpertKey


class Policy(Protocol):
    """Which resident row is worth least. Rows are numbers over all layers, dense and unchanging."""

    @property
    def name(self) -> str: ...

    @property
    def fixed(self) -> bool:
        """Nothing is taken in on a miss: the resident set is what `wanted` says."""

    def begin_step(self) -> None:
        """A decode step starts; time is counted in steps."""

    def touch(self, rows: Sequence[int]) -> None:
        """One layer of this step uses these rows, resident or not; no row twice."""

    def add(self, row: int) -> None:
        """`row` has become resident; it has been touched if a step asked for it."""

    def remove(self, row: int) -> None:
        """`row` is resident no more; what is known of its use stays known."""

    def victims(self, count: int, spared: Collection[int]) -> list[int]:
        """Up to `count` resident rows not in `spared`, least (value, row) first."""

    def values(self, rows: Sequence[int]) -> list[int]:
        """How likely each row is to be used again; comparable within one call."""

    def prefilled(self, counts: Mapping[int, int], tokens: int) -> None:
        """`tokens` of a prompt were read; `counts` of them went to each row. Not within a step."""

    def wanted(self, capacity: int) -> Sequence[int] | None:
        """The set that ought to be resident now, or None: whatever demand brings."""

    def check(self, resident: Collection[int]) -> None:
        """Asserts that the policy's own bookkeeping is of exactly these rows."""


class Lru:
    """Out goes what was used longest ago; of rows last used at one touch, the lowest number.

    Every operation is O(log rows) per row.
    """

    name = "lru"
    fixed = False

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # of every row ever used, by count of touches
        self._resident: set[int] = set()
        # (last use, row), least first; stale where the row is gone or has been used since.
        self._order: list[tuple[int, int]] = []
        self._clock = 0

    def begin_step(self) -> None:
        pass

    def touch(self, rows: Sequence[int]) -> None:
        self._clock += 1
        for row in rows:
            self._last[row] = self._clock
            if row in self._resident:
                heappush(self._order, (self._clock, row))
        if len(self._order) > 4 * len(self._resident) + 64:
            self._order = [(self._last.get(row, 0), row) for row in self._resident]
            heapify(self._order)

    def add(self, row: int) -> None:
        self._resident.add(row)
        heappush(self._order, (self._last.get(row, 0), row))

    def remove(self, row: int) -> None:
        self._resident.remove(row)

    def victims(self, count: int, spared: Collection[int]) -> list[int]:
        found: list[int] = []
        kept: list[tuple[int, int]] = []
        while len(found) < count and self._order:
            entry = stamp, row = heappop(self._order)
            # Whoever asked may evict none of them: all stay candidates. Twins meet here.
            if row not in self._resident or stamp != self._last.get(row, 0) or entry in kept[-1:]:
                continue
            kept.append(entry)
            if row not in spared:
                found.append(row)
        for entry in kept:
            heappush(self._order, entry)
        return found

    def values(self, rows: Sequence[int]) -> list[int]:
        return [self._last.get(row, 0) for row in rows]

    def prefilled(self, counts: Mapping[int, int], tokens: int) -> None:
        pass

    def wanted(self, capacity: int) -> Sequence[int] | None:
        return None

    def check(self, resident: Collection[int]) -> None:
        assert self._resident == set(resident)
        assert {(self._last.get(row, 0), row) for row in resident} <= set(self._order)


class Placement(NamedTuple):
    """`key` goes into `slot`, where `evicted` was."""

    key: ExpertKey
    slot: int
    evicted: ExpertKey | None


@dataclass(frozen=True, slots=True)
class Resized:
    """What a resize did: rows dropped, and rows to be copied from one slot to another, in order."""

    evicted: tuple[ExpertKey, ...]
    moves: tuple[tuple[int, int], ...]  # (from slot, to slot); no slot is read after it is written


class SlotTable:
    """Slots 0..capacity-1 and the experts in them."""

    def __init__(self, experts: Sequence[int], capacity: int, policy: Policy) -> None:
        """`experts`: routed experts of each layer, 0 where dense. Raises CapacityError."""
        self._base = [0, *accumulate(experts)]
        self._keys = [ExpertKey(layer, e) for layer, n in enumerate(experts) for e in range(n)]
        self._policy = policy
        self._slot_of: dict[int, int] = {}
        self._free: list[int] = []
        self._capacity = 0
        self._set_capacity(capacity)
        self.settle()

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def policy(self) -> Policy:
        return self._policy

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, key: ExpertKey) -> bool:
        return self._row(key) in self._slot_of

    def slot(self, key: ExpertKey) -> int | None:
        """Where the expert lies, or None."""
        return self._slot_of.get(self._row(key))

    def residents(self) -> dict[ExpertKey, int]:
        """Every resident expert and its slot."""
        return {self._keys[row]: slot for row, slot in self._slot_of.items()}

    def classify(self, keys: Sequence[ExpertKey]) -> tuple[list[ExpertKey], list[ExpertKey]]:
        """(resident, missing), each in the order of `keys`."""
        base, slot_of = self._base, self._slot_of
        hits: list[ExpertKey] = []
        misses: list[ExpertKey] = []
        for key in keys:
            (hits if base[key[0]] + key[1] in slot_of else misses).append(key)
        return hits, misses

    def begin_step(self) -> None:
        self._policy.begin_step()

    def touch(self, keys: Sequence[ExpertKey]) -> None:
        """One layer of this step uses these experts, all of them different."""
        self._policy.touch(self._rows(keys))

    def likeliest(self, keys: Sequence[ExpertKey]) -> list[ExpertKey]:
        """`keys` of one layer, the most likely to be used again first; of equals the lowest."""
        values = self._policy.values(self._rows(keys))
        return [key for _, key in sorted(zip((-value for value in values), keys, strict=True))]

    def admit(self, keys: Sequence[ExpertKey], spared: Sequence[ExpertKey] = ()) -> list[Placement]:
        """Take in the first of `keys` that find a slot; none of `spared` is evicted for them.

        Free slots go first, the lowest before others, then those of the least valuable rows.
        Fewer placements than keys: the policy is fixed, or every other slot is spared.
        """
        if self._policy.fixed:
            return []
        rows = self._rows(keys)
        assert not any(row in self._slot_of for row in rows), "already resident"
        short = len(rows) - len(self._free)
        out: list[int] = []
        if short > 0:
            out = self._policy.victims(short, set(self._rows(spared)))
            out.reverse()
        placed = []
        for row in rows[: len(self._free) + len(out)]:
            evicted = None
            if self._free:
                slot = self._free.pop()
            else:
                evicted = self._keys[out[-1]]
                slot = self._drop(out.pop())
            self._put(row, slot)
            placed.append(Placement(self._keys[row], slot, evicted))
        return placed

    def prefilled(self, counts: Mapping[ExpertKey, int], tokens: int) -> list[Placement]:
        """A prompt of `tokens` sent so many of them to each expert; placements as in `settle`."""
        assert tokens > 0
        rows = {self._row(key): count for key, count in counts.items()}
        self._policy.prefilled(rows, tokens)
        return self.settle()

    def settle(self) -> list[Placement]:
        """Bring in what a policy with a plan of its own wants resident, and drop the rest."""
        wanted = self._policy.wanted(self._capacity)
        if wanted is None:
            return []
        assert len(set(wanted)) == len(wanted) <= self._capacity
        old = {}
        for row in set(self._slot_of).difference(wanted):
            slot = self._drop(row)
            old[slot] = self._keys[row]
            self._free.append(slot)
        self._free.sort(reverse=True)
        placed = []
        for row in wanted:
            if row not in self._slot_of:
                slot = self._free.pop()
                self._put(row, slot)
                placed.append(Placement(self._keys[row], slot, old.get(slot)))
        return placed

    def resize(self, capacity: int) -> Resized:
        """Grow, or shrink and keep the most valuable rows. Raises CapacityError below one slot."""
        surplus = len(self._slot_of) - capacity
        out = self._policy.victims(surplus, ()) if surplus > 0 and capacity > 0 else []
        if surplus > len(out) and capacity > 0:  # a fixed set has no order of its own
            out += [row for row in self._slot_of if row not in out][: surplus - len(out)]
        if capacity > 0:
            for row in out:
                self._free.append(self._drop(row))
        moves = self._set_capacity(capacity)
        return Resized(tuple(self._keys[row] for row in out), moves)

    def check(self) -> None:
        """Asserts that slots and rows are one to one, and that the policy knows the same rows."""
        used = list(self._slot_of.values())
        assert sorted(used + self._free) == list(range(self._capacity))
        self._policy.check(self._slot_of.keys())

    def _set_capacity(self, capacity: int) -> tuple[tuple[int, int], ...]:
        if capacity < 1:
            raise CapacityError(f"{capacity} expert slots", expected="at least 1")
        self._free = [slot for slot in self._free if slot < capacity]
        self._free += range(self._capacity, capacity)
        self._free.sort(reverse=True)
        moves = []
        for slot, row in sorted((slot, row) for row, slot in self._slot_of.items()):
            if slot >= capacity:
                to = self._free.pop()
                moves.append((slot, to))
                self._slot_of[row] = to
        self._capacity = capacity
        return tuple(moves)

    def _put(self, row: int, slot: int) -> None:
        self._slot_of[row] = slot
        self._policy.add(row)

    def _drop(self, row: int) -> int:
        self._policy.remove(row)
        return self._slot_of.pop(row)

    def _row(self, key: ExpertKey) -> int:
        return self._base[key[0]] + key[1]

    def _rows(self, keys: Sequence[ExpertKey]) -> list[int]:
        base = self._base
        return [base[layer] + expert for layer, expert in keys]


class Shrunk(NamedTuple):
    """What is left of a table after `shrink`."""

    row_of_slot: list[int]  # of each remaining slot, -1 = free
    evicted: list[int]  # rows, the least valuable first
    moves: list[tuple[int, int]]  # (from slot, to slot); no slot is read after it is written


def shrink(values: Sequence[int], row_of_slot: Sequence[int], capacity: int) -> Shrunk:
    """Plan `SlotTable.resize` from a device's arrays: `values` by row, the row (-1) of each slot.

    The rows of least (value, row) go; what stays beyond the end moves to the lowest slots that are
    free. Grows as well. Raises CapacityError below one slot.
    """
    if capacity < 1:
        raise CapacityError(f"{capacity} expert slots", expected="at least 1")
    kept = {row: slot for slot, row in enumerate(row_of_slot) if row >= 0}
    surplus = max(0, len(kept) - capacity)
    evicted = nsmallest(surplus, kept, key=lambda row: (values[row], row))
    for row in evicted:
        del kept[row]
    left = [-1] * capacity
    beyond: list[tuple[int, int]] = []
    for row, slot in kept.items():  # in the order of slots
        if slot < capacity:
            left[slot] = row
        else:
            beyond.append((slot, row))
    free = (slot for slot, row in enumerate(list(left)) if row < 0)
    moves = []
    for (slot, row), to in zip(beyond, free, strict=False):
        left[to] = row
        moves.append((slot, to))
    return Shrunk(left, evicted, moves)
