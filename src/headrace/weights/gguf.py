"""The header of a GGUF file (versions 2 and 3), checked in full before any size in it is believed.
No torch.

Layout, little endian: "GGUF", version, tensor count, key count; typed keys; tensor records (name,
dimensions innermost first, type, offset); padding to the alignment; the tensors' bytes. Offsets
count from the end of that padding. Sizes are compared with what is left of the file first, so that
a header cannot make the reader allocate more than the file is long.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import CheckpointError
from headrace.files import check_regular
from headrace.weights.safetensors import Entry

MAX_HEADER_BYTES = 256 << 20
MAX_ITEMS = 8 << 20  # of all arrays together: the largest vocabularies have half a million
MAX_DEPTH = 4  # arrays in arrays
MAX_STRING_BYTES = 32 << 20
MAX_NAME_BYTES = 1 << 10
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20

# code -> name, values of a block, bytes of a block
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 28: ("F64", 1, 8),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}  # fmt: skip
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`entries` have absolute offsets and row-major shapes; their tags are ggml's type names."""

    file: Path
    metadata: dict[str, Any]
    entries: dict[str, Entry]


def is_gguf(file: Path) -> bool:
    """Whether the file begins as GGUF does."""
    try:
        with file.open("rb") as stream:
            return stream.read(4) == b"GGUF"
    except OSError:
        return False


def read_header(file: Path) -> GgufHeader:
    """Metadata and tensor table of one file. Raises CheckpointError naming file, entry and
    reason.
    """
    try:
        check_regular(file)
        size = file.stat().st_size
        with file.open("rb") as stream:
            return _Reader(file, stream, size).header()
    except OSError as error:
        raise CheckpointError(
            f"cannot read {file}: {error.strerror}", expected="a GGUF file", fix="check the path"
        ) from error


class _Reader:
    """A cursor over the header, which holds no more of the file than has been asked for."""

    def __init__(self, file: Path, stream: BinaryIO, size: int) -> None:
        self._file, self._stream, self._size = file, stream, size
        self._data, self._at = bytearray(), 0
        self._items = 0
        self._where = "the header"

    def header(self) -> GgufHeader:
        tensors, keys = self._start()
        metadata: dict[str, Any] = {}
        for n in range(keys):
            self._where = f"metadata key {n}"
            key = self._text(MAX_NAME_BYTES * 64, "its name")
            self._where = f"metadata key {key!r}"
            if key in metadata:
                raise self._torn("it occurs twice", "every key once")
            metadata[key] = self._value(self._one("I"))
        alignment = self._alignment(metadata)
        records: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for n in range(tensors):
            self._where = f"tensor {n}"
            name = self._text(MAX_NAME_BYTES, "its name")
            self._where = f"tensor {name!r}"
            if name in records:
                raise self._torn("it occurs twice", "every tensor once")
            records[name] = self._record(alignment)
        data = -(-self._at // alignment) * alignment
        entries = {
            name: Entry(tag, shape, data + offset, nbytes)
            for name, (tag, shape, offset, nbytes) in records.items()
        }
        self._check_places(entries)
        return GgufHeader(self._file, metadata, entries)

    def _start(self) -> tuple[int, int]:
        if self._size < 24:
            raise self._torn(f"a file of {self._size} bytes", "at least 24")
        if bytes(self._take(4)) != b"GGUF":
            raise self._torn("it does not begin with GGUF", "a GGUF file")
        version = self._one("I")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in (1, 2, 3)
            kind = "big-endian" if swapped else f"version {version}"
            raise self._torn(f"it is {kind}", "version 2 or 3, little endian")
        tensors, keys = self._one("Q"), self._one("Q")
        # The shortest record of a tensor has 24 bytes, that of a key 13.
        for count, least, what in ((tensors, 24, "tensors"), (keys, 13, "keys")):
            self._fits(count * least, f"{count} {what}")
        return tensors, keys

    def _alignment(self, metadata: dict[str, Any]) -> int:
        self._where = "metadata key 'general.alignment'"
        value = metadata.get("general.alignment", 32)
        if type(value) is not int or not 8 <= value <= MAX_ALIGNMENT or value % 8:
            raise self._torn(f"it is {value!r}", f"a multiple of 8 up to {MAX_ALIGNMENT}")
        return value

    def _record(self, alignment: int) -> tuple[str, tuple[int, ...], int, int]:
        dimensions = self._one("I")
        if dimensions > MAX_DIMENSIONS:
            raise self._torn(f"{dimensions} dimensions", f"at most {MAX_DIMENSIONS}")
        shape = tuple(self._one("Q") for _ in range(dimensions))[::-1]
        code, offset = self._one("I"), self._one("Q")
        if code not in TYPES:
            raise self._torn(
                f"ggml type {code}", "one of " + ", ".join(name for name, _, _ in TYPES.values())
            )
        tag, block, block_bytes = TYPES[code]
        row = shape[-1] if shape else 1
        if 0 in shape or row % block:
            raise self._torn(f"shape {list(shape)} of {tag}", f"rows of whole blocks of {block}")
        count = 1
        for n in shape:
            count *= n
        nbytes = count // block * block_bytes
        if nbytes > self._size or offset > self._size:
            raise self._torn(
                f"{tag} {list(shape)} at {offset}", f"tensors within the file's {self._size} bytes"
            )
        if offset % alignment:
            raise self._torn(f"offset {offset}", f"a multiple of the alignment {alignment}")
        return tag, shape, offset, nbytes

    def _check_places(self, entries: dict[str, Entry]) -> None:
        end, before = 0, ""
        for name, entry in sorted(entries.items(), key=lambda item: item[1].offset):
            self._where = f"tensor {name!r}"
            if entry.offset < end:
                raise self._torn(f"it overlaps {before!r}", "tensors one after another")
            end, before = entry.offset + entry.nbytes, name
            if end > self._size:
                raise self._torn(
                    f"it ends at byte {end} of a file of {self._size}", "the whole file"
                )

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._text(MAX_STRING_BYTES, "its text", errors="replace")
        if kind in _SCALARS:
            value = self._one(_SCALARS[kind])
            return bool(value) if kind == _BOOL else value
        if kind != _ARRAY or depth > MAX_DEPTH:
            raise self._torn(f"value type {kind} in {depth} arrays", f"0 to 12, {MAX_DEPTH} deep")
        item, count = self._one("I"), self._one("Q")
        self._items += count
        if self._items > MAX_ITEMS:
            raise self._torn(f"an array of {count} items", f"at most {MAX_ITEMS} in all arrays")
        if item == _STRING:
            self._fits(8 * count, f"an array of {count} texts")
            return self._texts(count)
        if item not in _SCALARS:
            self._fits(12 * count, f"an array of {count} arrays")
            return [self._value(item, depth + 1) for _ in range(count)]
        form = f"<{count}{_SCALARS[item]}"
        values = struct.unpack(form, self._take(struct.calcsize(form)))
        return [bool(v) for v in values] if item == _BOOL else list(values)

    def _text(self, limit: int, what: str, *, errors: str = "strict") -> str:
        length = self._one("Q")
        if length > limit:
            raise self._torn(f"{what} has {length} bytes", f"at most {limit}")
        try:
            return self._take(length).decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self._torn(f"{what} is not UTF-8", "UTF-8 text") from error

    def _texts(self, count: int) -> list[str]:
        # Vocabularies have half a million: one call for each took a second.
        texts: list[str] = []
        length_at = struct.Struct("<Q").unpack_from
        data, at = self._data, self._at
        for _ in range(count):
            if at + 8 > len(data):
                self._hold(at, 8)
            (length,) = length_at(data, at)
            at += 8
            if at + length > len(data):
                if length > MAX_STRING_BYTES:
                    raise self._torn(f"a text of {length} bytes", f"at most {MAX_STRING_BYTES}")
                self._hold(at, length)
            texts.append(data[at : at + length].decode("utf-8", "replace"))
            at += length
        self._at = at
        return texts

    def _one(self, form: str) -> Any:
        form = "<" + form
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, nbytes: int) -> bytearray:
        at, end = self._at, self._at + nbytes
        if end > len(self._data):
            self._hold(at, nbytes)
        self._at = end
        return self._data[at:end]

    def _hold(self, at: int, nbytes: int) -> None:
        """Reads on until `nbytes` from `at` are held."""
        self._at, end = at, at + nbytes
        self._fits(nbytes, f"{nbytes} bytes")
        if end > MAX_HEADER_BYTES:
            raise self._torn("a header that goes on", f"at most {MAX_HEADER_BYTES} bytes")
        self._data += self._stream.read(max(end - len(self._data), _CHUNK))
        if end > len(self._data):
            raise self._torn("the file became shorter", "a file that stays as it is")

    def _fits(self, nbytes: int, what: str) -> None:
        left = self._size - self._at
        if nbytes > left:
            raise self._torn(f"{what} in the {left} bytes that are left", "the whole file")

    def _torn(self, found: str, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{self._file}: {self._where}: {found}",
            expected=expected,
            fix="download this file again",
        )
