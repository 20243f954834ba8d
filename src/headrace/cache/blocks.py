"""Numbers of KV blocks and state slots: who holds which, and how many are left. No torch.

A number is either free or held by at least one holder, never both; `check` proves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Table(NamedTuple):
    """Some blocks of a sequence that follow each other; the first of them is its block `first`."""

    first: int
    blocks: tuple[int, ...]


Tables = tuple[Table, ...]  # one per size of window


class BlockPool:
    """`count` numbers from `first` on, handed out one by one and shared by reference count.

    Numbers below `first` are never handed out: a zero-filled table entry then names nobody's block.
    The number freed last is handed out first, because its memory is the warmest.
    """

    def __init__(self, count: int, *, first: int = 0) -> None:
        self.first = first
        self.count = count
        self._holders = [0] * count
        self._free = list(range(first + count - 1, first - 1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.count - len(self._free)

    def take(self, n: int = 1) -> tuple[int, ...]:
        """`n` numbers with one holder each. The caller has looked at `free` first."""
        assert 0 <= n <= len(self._free), f"{n} of {len(self._free)} free"
        taken = tuple(self._free.pop() for _ in range(n))
        for number in taken:
            self._holders[number - self.first] = 1
        return taken

    def share(self, numbers: Iterable[int]) -> None:
        """One more holder for each number; all must be held already."""
        for number in numbers:
            assert self.holders(number) > 0, f"{number} is free"
            self._holders[number - self.first] += 1

    def release(self, numbers: Iterable[int]) -> None:
        """One holder less for each number; those without any are free again."""
        for number in numbers:
            left = self.holders(number) - 1
            assert left >= 0, f"{number} is free already"
            self._holders[number - self.first] = left
            if left == 0:
                self._free.append(number)

    def resize(self, count: int) -> dict[int, int]:
        """So many numbers from now on; the caller has seen that no more are used.

        Returns the held numbers that are beyond the end now, and what each is called instead.
        """
        assert 0 <= self.used <= count, f"{self.used} are used"
        end = self.first + count
        held = [n for n in range(end, self.first + self.count) if self.holders(n)]
        free = sorted((n for n in self._free if n < end), reverse=True)
        free[:0] = range(end - 1, self.first + self.count - 1, -1)
        moved = {old: free.pop() for old in held}
        holders = [0] * count
        kept = min(count, self.count)
        holders[:kept] = self._holders[:kept]
        for old, new in moved.items():
            holders[new - self.first] = self._holders[old - self.first]
        self.count, self._holders, self._free = count, holders, free
        return moved

    def holders(self, number: int) -> int:
        assert self.first <= number < self.first + self.count, f"no number {number}"
        return self._holders[number - self.first]

    def held(self) -> set[int]:
        """All numbers that somebody holds."""
        return {i + self.first for i, holders in enumerate(self._holders) if holders}

    def check(self) -> None:
        """Raise AssertionError where the free list and the counts disagree."""
        free = set(self._free)
        assert len(free) == len(self._free), "a number is free twice"
        for i, holders in enumerate(self._holders):
            assert holders >= 0, f"{i + self.first} has {holders} holders"
            assert (holders == 0) == (i + self.first in free), f"{i + self.first}: free and held"
        assert len(free) + sum(h > 0 for h in self._holders) == self.count
