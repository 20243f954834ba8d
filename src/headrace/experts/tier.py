"""RAM as the cache of rows that lie on disk.

Rows are read into spare slots; one that has been used takes the place of the least valuable, whose
slot becomes spare. So the table holds whole rows only, and a read that fails costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from headrace.experts.reading import Coming, RowReader
from headrace.planning.facts import ExpertKey, ModelFacts
from headrace.planning.lru import Policy, SlotTable

Slots: TypeAlias = dict[ExpertKey, int]


class RowTier:
    """`capacity` resident rows and `spare` more slots through which rows come in."""

    def __init__(
        self, reader: RowReader, facts: ModelFacts, policy: Policy, *, capacity: int, spare: int
    ) -> None:
        assert spare > 0
        self.reader, self.facts = reader, facts
        self.table = SlotTable(facts.experts, capacity, policy)
        self._slot_of = list(range(capacity))  # of each place in the table
        self._spare = list(range(capacity, capacity + spare))
        self._coming: dict[ExpertKey, Coming] = {}

    @property
    def room(self) -> bool:
        """Another row can be asked for."""
        return bool(self._spare) and self.reader.ready

    def slot(self, key: ExpertKey) -> int | None:
        """Where a resident row lies."""
        place = self.table.slot(key)
        return None if place is None else self._slot_of[place]

    def coming(self, key: ExpertKey) -> bool:
        return key in self._coming

    def ask(self, key: ExpertKey, *, urgent: bool) -> None:
        """It is on its way, and among the urgent ones if it was not. There must be room."""
        known = self._coming.get(key)
        if known is None:
            self._coming[key] = self.reader.start(key, self._spare.pop(), urgent=urgent)
        elif urgent:
            self.reader.queue.hurry(known.ticket)

    def done(self, key: ExpertKey) -> bool:
        """Taking it will not wait."""
        return self.reader.queue.done(self._coming[key].ticket)

    def take(self, key: ExpertKey) -> int:
        """The slot of a row that was asked for, once it is there; the caller's until `keep` or
        `leave`. Raises CheckpointError where it cannot be read.
        """
        coming = self._coming.pop(key)
        try:
            self.reader.finish(coming)
        except BaseException:
            self._spare.append(coming.slot)
            raise
        return coming.slot

    def ask_all(self, missing: Sequence[ExpertKey]) -> list[ExpertKey]:
        """As many as there is room for are on their way, urgently; the rest."""
        # Those on their way come first, as they hold slots.
        for key in missing:
            if self.coming(key):
                self.ask(key, urgent=True)
        rest = [key for key in missing if not self.coming(key)]
        while rest and self.room:
            self.ask(rest.pop(0), urgent=True)
        return rest

    def take_in(
        self,
        missing: Sequence[ExpertKey],
        waiting: list[ExpertKey],
        run: Callable[[Slots], None],
        settle: Callable[[Slots], None],
    ) -> None:
        """Runs rows that were asked for as they come, `waiting` ones behind them: a slot that
        `settle` gives up is filled at once.
        """
        left = [key for key in missing if self.coming(key)]
        while left:
            slots: Slots = {}
            try:
                first = next((key for key in left if self.done(key)), left[0])
                slots[first] = self.take(first)
                for key in left:
                    if key not in slots and self.done(key):
                        slots[key] = self.take(key)
                run(slots)
            except BaseException:
                self.leave(slots.values())
                raise
            settle(slots)
            left = [key for key in left if key not in slots]
            while waiting and self.room:
                left.append(waiting[0])
                self.ask(waiting.pop(0), urgent=True)

    def resident(self, keys: Iterable[ExpertKey]) -> Slots:
        """Where these resident rows lie."""
        found = {key: self.slot(key) for key in keys}
        assert None not in found.values()
        return cast(Slots, found)

    def keep(self, slots: dict[ExpertKey, int], spared: Sequence[ExpertKey]) -> None:
        """Rows that were taken become resident where there is a place; of `spared`, none goes."""
        left = dict(slots)
        for placed in self.table.admit(list(slots), spared):
            self._spare.append(self._slot_of[placed.slot])
            self._slot_of[placed.slot] = left.pop(placed.key)
        self.leave(left.values())

    def leave(self, slots: Iterable[int]) -> None:
        """Rows that were taken are not kept."""
        self._spare.extend(slots)

    def drop(self, keys: Sequence[ExpertKey] | None = None) -> None:
        """Rows on their way (None: all) are not wanted any more."""
        for key in list(self._coming) if keys is None else keys:
            coming = self._coming.pop(key)
            self.reader.drop(coming)
            self._spare.append(coming.slot)

    def awaited(self, layer: int) -> list[ExpertKey]:
        """Rows of a layer that are on their way."""
        return [key for key in self._coming if key.layer == layer]

    def status(self) -> dict[str, Any]:
        """What RAM holds and what was read; JSON-able."""
        queue = self.reader.queue
        busy_s = queue.busy_ns / 1e9
        return {
            "rows": self.table.capacity,
            "resident": len(self.table),
            "read_bytes": queue.bytes,
            "reading_s": busy_s,
            "read_rate": queue.bytes / busy_s if busy_s else 0.0,
        }

    def check(self) -> None:
        """Asserts that every slot has one owner. Between steps."""
        self.table.check()
        owned = [*self._slot_of, *self._spare, *(c.slot for c in self._coming.values())]
        assert sorted(owned) == list(range(len(owned)))
