"""Writes BF16 safetensors shards in the published layout, one tensor in memory at a time."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.weights.safetensors import head_of

SHARD_BYTES = 350_000_000


@dataclass(frozen=True)
class Planned:
    """A tensor to be written; `make` is called once, when its turn comes."""

    name: str
    shape: tuple[int, ...]
    make: Callable[[], NDArray[np.float32]]

    @property
    def nbytes(self) -> int:
        return 2 * int(np.prod(self.shape))


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even; the values must be finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = bits >> 16
    odd &= 1
    odd += 0x7FFF
    odd += bits
    odd >>= 16
    return odd.astype(np.uint16)


def split(tensors: Iterable[Planned], limit: int = SHARD_BYTES) -> list[list[Planned]]:
    """Shards of at most `limit` bytes each, in order; a larger tensor gets its own."""
    shards: list[list[Planned]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    return shards


def write(folder: Path, tensors: list[Planned], progress: Callable[[int], None]) -> list[Path]:
    """Write shards and their index into `folder`; `progress` receives the bytes just written."""
    shards = split(tensors)
    paths: list[Path] = []
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        path = folder / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(path, shard, progress)
        paths.append(path)
        where |= {tensor.name: path.name for tensor in shard}
    total = sum(tensor.nbytes for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return paths


def _write_shard(path: Path, shard: list[Planned], progress: Callable[[int], None]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in shard:
        span = [at, at + tensor.nbytes]
        header[tensor.name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": span}
        at += tensor.nbytes
    with path.open("wb") as file:
        file.write(head_of(header))
        for tensor in shard:
            values = tensor.make()
            assert values.shape == tensor.shape, tensor.name
            file.write(bfloat16(values).data)
            progress(tensor.nbytes)
        file.flush()
        os.fsync(file.fileno())
