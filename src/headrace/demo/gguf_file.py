"""Tensors of a GGUF file decoded with numpy: Q4_1, Q8_0, F16, F32: what the parent holds."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError
from headrace.weights.gguf import read_header

_KINDS = ("F32", "F16", "Q4_1", "Q8_0")


class GgufFile:
    """`meta` holds the metadata; `tensor` decodes one tensor. Raises CheckpointError when torn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_header(path)
        self.meta: dict[str, Any] = header.metadata
        self._entries = header.entries
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @property
    def names(self) -> list[str]:
        """Tensor names in file order."""
        return list(self._entries)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Tensor `name` decoded to float32, row-major [..., in]."""
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self.path} lacks the tensor {name}")
        if entry.tag not in _KINDS:
            raise CheckpointError(
                f"{self.path}: tensor {name} is {entry.tag}", expected=str(_KINDS)
            )
        raw = np.frombuffer(self._map, np.uint8, entry.nbytes, entry.offset)
        return _decode(raw, entry.tag).reshape(entry.shape)


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
