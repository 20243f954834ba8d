"""Memory that holds weights: on huge pages, of exact size, returned when the last view of it is
gone. No torch.
"""

from __future__ import annotations

import ctypes
import weakref

from headrace import _native


class Arena:
    """`nbytes` of zeroed memory at `address`; it lives as long as this object."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = _native.alloc(nbytes)
        weakref.finalize(self, _native.free, self.address, nbytes)

    def buffer(self, offset: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
        """A writable buffer over a part, which keeps the whole arena alive."""
        assert 0 <= offset <= offset + nbytes <= self.nbytes
        array = (ctypes.c_char * nbytes).from_address(self.address + offset)
        array.arena = self  # type: ignore[attr-defined]  # ctypes arrays take attributes
        return array
