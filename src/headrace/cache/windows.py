"""Keys and values of layers with a window: blocks that some sequence or saved state can still look
back at. No torch.

A saved state shares the blocks of the sequence it was saved from, the one that is still written
included: it knows of the tokens before its position only. Who goes on from it copies that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.cache.blocks import BlockPool, Table, Tables
from headrace.cache.lease import Copies, moved
from headrace.cache.radix import Checkpoint
from headrace.planning.windows import Window

MakeRoom = Callable[[], bool]  # a saved state goes; False where there is none


class Windows:
    """The blocks of every size of window, on the device and in the host tier."""

    def __init__(
        self,
        kinds: Sequence[Window],
        size: int,
        slots: tuple[BlockPool, BlockPool],
        copies: Copies,
        *,
        first: int,
    ) -> None:
        """`size`: tokens of a block; `slots`: of states, on the device and in the host tier;
        `first`: the lowest number of a block."""
        device, host = slots
        self.kinds = [
            Kind(kind, size, BlockPool(kind.blocks(device.count), first=first), host.count)
            for kind in kinds
        ]
        self._copies = copies

    def begin(self, source: Checkpoint | None, room: MakeRoom) -> Tables:
        """Of a sequence that goes on from this state, which `room` must leave alone."""
        if source is None:
            return tuple(Table(0, ()) for _ in self.kinds)
        return tuple(
            self._of_host(kind, table, room)
            if source.slot < 0
            else self._of_device(kind, table, source.position, room)
            for kind, table in zip(self.kinds, source.windows, strict=True)
        )

    def grow(self, tables: Tables, end: int, room: MakeRoom) -> Tables:
        """Blocks up to position `end`."""
        return tuple(
            kind.grown(table, end, room) for kind, table in zip(self.kinds, tables, strict=True)
        )

    def trim(self, tables: Tables, computed: int) -> Tables:
        """Without what the token at position `computed` and those behind it never look at."""
        return tuple(
            kind.trimmed(table, computed) for kind, table in zip(self.kinds, tables, strict=True)
        )

    def keep(self, tables: Tables, position: int, *, host: bool) -> Tables:
        """For a state saved at this position of a sequence that holds `tables`."""
        parts = tuple(
            kind.part(table, position) for kind, table in zip(self.kinds, tables, strict=True)
        )
        if host:
            return self.spilled(parts)
        for kind, part in zip(self.kinds, parts, strict=True):
            kind.pool.share(part.blocks)
        return parts

    def spilled(self, tables: Tables) -> Tables:
        """The same in the host tier; the device's are still held."""
        made = []
        for kind, table in zip(self.kinds, tables, strict=True):
            blocks = tuple(~n for n in kind.host.take(len(table.blocks)))
            self._copy(kind, zip(table.blocks, blocks, strict=True))
            made.append(Table(table.first, blocks))
        return tuple(made)

    def release(self, tables: Tables) -> None:
        """Of a sequence or of a saved state."""
        for kind, table in zip(self.kinds, tables, strict=True):
            kind.pool.release(n for n in table.blocks if n >= 0)
            kind.host.release(~n for n in table.blocks if n < 0)

    def resize(self, slots: int, room: MakeRoom) -> list[dict[int, int]]:
        """For so many state slots; old -> new of the blocks whose number changes."""
        for kind in self.kinds:
            while kind.pool.used > kind.window.blocks(slots):
                made = room()
                assert made, "no more sequences run than there are slots"
        return [kind.pool.resize(kind.window.blocks(slots)) for kind in self.kinds]

    def resize_host(self, slots: int, saved: Iterable[Checkpoint]) -> None:
        """No more states than that are left there; what moves is listed."""
        moves = [
            {~old: ~new for old, new in kind.host.resize(kind.window.each * slots).items()}
            for kind in self.kinds
        ]
        for kind, of in zip(self.kinds, moves, strict=True):
            self._copy(kind, of.items())
        self.renamed(saved, moves)

    def renamed(self, saved: Iterable[Checkpoint], moves: Sequence[dict[int, int]]) -> None:
        """Blocks have other numbers: old -> new."""
        if any(moves):
            for checkpoint in saved:
                checkpoint.windows = moved(checkpoint.windows, moves)

    def status(self) -> list[dict[str, int]]:
        """JSON-able, a size of window each."""
        return [
            {
                "tokens": kind.window.tokens,
                "blocks_used": kind.pool.used,
                "blocks_total": kind.pool.count,
                "host_blocks_used": kind.host.used,
                "host_blocks_total": kind.host.count,
            }
            for kind in self.kinds
        ]

    def check(self, running: Sequence[Tables], saved: Iterable[Checkpoint]) -> None:
        """Raise AssertionError where who holds which block does not add up."""
        kept = list(saved)
        for i, kind in enumerate(self.kinds):
            kind.check([tables[i] for tables in running], kept, [c.windows[i] for c in kept])

    def _of_device(self, kind: Kind, table: Table, position: int, room: MakeRoom) -> Table:
        whole = position // kind.size - table.first  # blocks that are never written again
        kind.pool.share(table.blocks[:whole])
        written = table.blocks[whole:]
        own = kind.take(len(written), room)
        self._copy(kind, zip(written, own, strict=True))
        return Table(table.first, table.blocks[:whole] + own)

    def _of_host(self, kind: Kind, table: Table, room: MakeRoom) -> Table:
        own = kind.take(len(table.blocks), room)
        self._copy(kind, zip(table.blocks, own, strict=True))
        return Table(table.first, own)

    def _copy(self, kind: Kind, pairs: Iterable[tuple[int, int]]) -> None:
        listed = list(pairs)
        if listed:
            self._copies.windows.setdefault(kind.window.tokens, []).extend(listed)


class Kind:
    """Blocks of one size of window."""

    def __init__(self, window: Window, size: int, pool: BlockPool, host_slots: int) -> None:
        self.window, self.size, self.pool = window, size, pool
        self.host = BlockPool(window.each * host_slots)

    def seen(self, position: int) -> range:
        """The blocks of a sequence that its token at `position` looks back at, and the one that it
        goes on in."""
        first = max(0, position - self.window.tokens + 1)
        return range(first // self.size, -(-position // self.size))

    def part(self, table: Table, position: int) -> Table:
        """Of a table, what is seen from there."""
        seen, first = self.seen(position), table.first
        assert first <= seen.start, "it has been given back"
        return Table(seen.start, table.blocks[seen.start - first : seen.stop - first])

    def grown(self, table: Table, end: int, room: MakeRoom) -> Table:
        more = -(-end // self.size) - table.first - len(table.blocks)
        return Table(table.first, table.blocks + self.take(more, room)) if more > 0 else table

    def trimmed(self, table: Table, computed: int) -> Table:
        first, blocks = table
        if self.seen(computed) == range(first, first + len(blocks)):
            return table
        kept = self.part(table, computed)
        before = kept.first - table.first
        self.pool.release(table.blocks[:before])
        self.pool.release(table.blocks[before + len(kept.blocks) :])
        return kept

    def take(self, n: int, room: MakeRoom) -> tuple[int, ...]:
        """Saved states make room: sequences alone never hold them all."""
        while self.pool.free < n:
            made = room()
            assert made, "sequences hold more than their windows"
        return self.pool.take(n)

    def check(self, running: Sequence[Table], saved: list[Checkpoint], kept: list[Table]) -> None:
        self.pool.check()
        self.host.check()
        held: dict[int, int] = {}
        for table in (*running, *kept):
            assert len(table.blocks) == len(set(table.blocks))
            for block in table.blocks:
                held[block] = held.get(block, 0) + 1
        assert self.pool.used == sum(n >= 0 for n in held)
        assert {~n for n in held if n < 0} == self.host.held()
        for block, n in held.items():
            assert n == (self.host.holders(~block) if block < 0 else self.pool.holders(block))
        for checkpoint, table in zip(saved, kept, strict=True):
            seen = self.seen(checkpoint.position)
            assert range(table.first, table.first + len(table.blocks)) == seen
            assert all((n < 0) == (checkpoint.slot < 0) for n in table.blocks)
