"""Device memory made of RAM: a budget that is kept, and ranges that grow and shrink in place."""

from __future__ import annotations

import mmap
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

from headrace.errors import CapacityError

POISON = 0xFF  # NaN in every float format, -1 in every integer
_PAGE = mmap.PAGESIZE
_HUGE = 2 << 20
_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, which Python does not name


class DeviceMemory:
    """Counts what is handed out. `total` may be lowered while it is in use: nothing is taken back,
    but nothing more is given until enough has been returned.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._ranges: set[ElasticRange] = set()

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)

    def take(self, nbytes: int) -> None:
        """Raises CapacityError where that much is not free."""
        if nbytes > self.free:
            raise CapacityError(
                f"{nbytes} bytes were asked of a device with {self.free} of {self.total} free",
                fix="shrink a cache or raise emulated.memory",
            )
        self.used += nbytes

    def give(self, nbytes: int) -> None:
        self.used -= nbytes
        assert self.used >= 0

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Poisoned; counted until the last view of it is gone. Raises CapacityError."""
        nbytes = prod(shape) * dtype.itemsize
        self.take(nbytes)
        flat = torch.full((nbytes,), POISON, dtype=torch.uint8)
        weakref.finalize(flat.untyped_storage(), self.give, nbytes)
        return flat.view(dtype).view(tuple(shape))

    def range(self, reserved: int, *, poison: bool) -> ElasticRange:
        """Raises CapacityError where the system refuses the address space."""
        made = ElasticRange(self, reserved, poison=poison, closed=self._ranges.discard)
        self._ranges.add(made)
        return made

    def close(self) -> None:
        """Gives up the pages of every range."""
        for held in list(self._ranges):
            held.close()


class ElasticRange:
    """`tensor` (uint8) spans `reserved` bytes whose address never moves; the first `committed` of
    them may be used. What is given up is gone; with `poison`, what is committed anew reads as NaN,
    else as zeros.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        reserved: int,
        *,
        poison: bool,
        closed: Callable[[ElasticRange], None],
    ) -> None:
        self._memory, self._poison, self._closed = memory, poison, closed
        reserved = -(-max(reserved, 1) // _PAGE) * _PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        try:
            self._map = mmap.mmap(-1, reserved, flags=flags)
        except OSError as error:
            raise CapacityError(
                f"the system refused {reserved} bytes of address space: {error}",
                fix="lower the context or memory.kv_bytes, or allow more memory (ulimit -v)",
            ) from error
        if reserved >= _HUGE:
            with suppress(OSError):  # a kernel without them
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8)
        self.committed = 0

    def resize(self, nbytes: int, *, touched: int = 0) -> None:
        """What is committed anew among the first `touched` bytes is in RAM at once, the rest when
        it is written; with poison all of it is.

        Raises CapacityError where the device has not that much; then nothing has changed.
        """
        nbytes = -(-nbytes // _PAGE) * _PAGE
        assert 0 <= nbytes <= self.tensor.numel(), "more than was reserved"
        if nbytes >= self.committed:
            self._memory.take(nbytes - self.committed)
            if self._poison:
                self.tensor[self.committed : nbytes] = POISON
            else:
                self.tensor[self.committed : min(nbytes, touched)] = 0
        else:
            self._map.madvise(mmap.MADV_DONTNEED, nbytes, self.committed - nbytes)
            self._memory.give(self.committed - nbytes)
        self.committed = nbytes

    def close(self) -> None:
        """Gives up every page; what reads it then sees zeros."""
        self.resize(0)
        self._closed(self)


class HostMemory:
    """RAM that no budget bounds but the plan's."""

    def __init__(self) -> None:
        self._memory = DeviceMemory(1 << 62)

    def elastic(self, reserved: int) -> ElasticRange:
        """Memory that can grow up to `reserved` bytes without moving. Raises CapacityError."""
        return self._memory.range(reserved, poison=False)

    def close(self) -> None:
        self._memory.close()
