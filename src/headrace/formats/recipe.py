"""Stored parts of one matrix on their way into tiles. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from headrace.formats.format import Format

Array: TypeAlias = Any  # of numpy, whose operators have no types of use
Parts = Mapping[str, Array]  # role -> as stored, for one matrix; 8-bit floats are bytes
# (parts, rows taken of the stored ones, format, tiles [tiles, nbytes] to fill)
Pack = Callable[[Parts, slice, Format, Array], None]

NUMPY = {
    "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8", "U8": "u1", "I8": "u1",
    "F8_E4M3": "u1", "F8_E8M0": "u1", "F8_E5M2": "u1",
}  # fmt: skip


def as_float32(x: Array) -> Array:
    """Of float32, float16, or bfloat16 as uint16."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


def address(x: Array) -> int:
    """Of the first element."""
    return int(x.__array_interface__["data"][0])


def raw(x: Array) -> Array:
    """The bytes of the last axis."""
    return np.ascontiguousarray(x).view(np.uint8)
