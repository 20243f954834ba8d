"""The header of a .safetensors file, checked in full before any offset in it is believed. No torch.

Layout: uint64 header length N (little endian), N bytes of JSON, then the tensors' bytes. Offsets in
the header count from the end of the header; together the tensors cover the rest of the file without
a hole.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import CheckpointError
from headrace.files import check_regular

MAX_HEADER_BYTES = 100 << 20
MAX_DIMENSIONS = 8
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class Entry(NamedTuple):
    """`offset` counts from the start of the file."""

    tag: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_table(file: Path) -> dict[str, Entry]:
    """All tensors of one file. Raises CheckpointError naming the file, what is wrong and what to
    do.
    """
    try:
        check_regular(file)
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(8)
            if len(head) < 8:
                raise _torn(file, f"has {size} bytes", "at least the 8 bytes of a header length")
            length = struct.unpack("<Q", head)[0]
            if not 2 <= length <= min(MAX_HEADER_BYTES, max(size - 8, 0)):
                raise _torn(
                    file,
                    f"announces a header of {length} bytes in a file of {size}",
                    f"2 to {min(MAX_HEADER_BYTES, max(size - 8, 0))}",
                )
            text = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _torn(file, f"has a header that is not JSON ({error})", "one JSON object") from error
    if not isinstance(header, dict):
        raise _torn(file, "has a header that is not an object", "one JSON object")
    header.pop("__metadata__", None)
    table = {name: _entry(file, name, value, 8 + length) for name, value in header.items()}
    _check_cover(file, table, 8 + length, size)
    return table


def head_of(header: Mapping[str, object]) -> bytes:
    """How a file with this table begins: its length, and the table padded to 8 bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _torn(file: Path, found: str, expected: str) -> CheckpointError:
    return CheckpointError(f"{file} {found}", expected=expected, fix="download this file again")


def _entry(file: Path, name: str, value: Any, data_start: int) -> Entry:
    where = f"holds a malformed entry for {name[:200]!r}"
    if not isinstance(value, dict):
        raise _torn(file, where, "dtype, shape and data_offsets")
    tag: Any = value.get("dtype")
    shape: Any = value.get("shape")
    span: Any = value.get("data_offsets")
    if not isinstance(tag, str) or tag not in _BITS:
        raise _torn(file, f"{where}: dtype {tag!r}", "one of " + ", ".join(_BITS))
    if not _naturals(shape) or len(shape) > MAX_DIMENSIONS:
        raise _torn(
            file, f"{where}: shape {str(shape)[:80]}", f"up to {MAX_DIMENSIONS} whole numbers"
        )
    if not _naturals(span) or len(span) != 2 or span[0] > span[1]:
        raise _torn(file, f"{where}: data_offsets {str(span)[:80]}", "[begin, end]")
    bits = _BITS[tag]
    for n in shape:
        bits *= n
    nbytes = span[1] - span[0]
    if bits != 8 * nbytes:
        raise _torn(file, f"{where}: {nbytes} bytes", f"{-(-bits // 8)} for {tag} {list(shape)}")
    return Entry(tag, tuple(shape), data_start + span[0], nbytes)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 60 for n in value)


def _check_cover(file: Path, table: dict[str, Entry], start: int, size: int) -> None:
    end = start
    for name, entry in sorted(table.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if entry.offset != end:
            what = "overlaps the tensor before it" if entry.offset < end else "follows a hole"
            raise _torn(file, f"has a tensor {name!r} that {what}", "tensors one after another")
        end += entry.nbytes
    if end != size:
        kind = "is truncated" if size < end else "has bytes behind its last tensor"
        raise _torn(file, f"{kind}: {size} bytes", f"{end} as its header says")
