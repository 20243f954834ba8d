"""Weights of any format: a plain float tensor, or tiles of packed rows.

One uint8 tensor holds all of a packed matrix; nothing above the kernels looks into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

from headrace.formats import float as floats
from headrace.formats import fp8, ggml, int4, mx, nvfp4
from headrace.formats.format import Format

_DECODE = {
    "fp8": fp8,
    "fp8-row": fp8,
    "mxfp8": mx,
    "mxfp4-rows": mx,
    "nvfp4": nvfp4,
    "int4": int4,
    "int4-ordered": int4,
}


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """[rows, columns] as `data`: uint8 [tiles, tile bytes], any row stride."""

    format: Format
    rows: int
    columns: int
    data: Tensor

    def __post_init__(self) -> None:
        tiles, nbytes = self.format.tiles(self.rows), self.format.tile_nbytes(self.columns)
        assert self.data.dtype == torch.uint8, self.data.dtype
        assert self.data.shape == (tiles, nbytes), (self.data.shape, tiles, nbytes)
        assert self.data.stride(1) == 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def data_ptr(self) -> int:
        return self.data.data_ptr()


Weight: TypeAlias = Tensor | Packed


def decode(w: Weight) -> Tensor:
    """The values as float32; `w` itself where it is float32 already."""
    if not isinstance(w, Packed):
        return floats.decode(w)
    codec = _DECODE.get(w.format.name, ggml)
    values = codec.decode(w.data.cpu().numpy(), w.format, w.columns)
    return torch.from_numpy(values)[: w.rows].contiguous()


def row_blocks(w: Weight, sizes: Sequence[int]) -> list[Weight]:
    """Blocks of rows that follow each other, where they lie. Where tiles reach over their bounds,
    all are widened to float32 copies.
    """
    firsts = list(accumulate(sizes, initial=0))
    assert firsts[-1] == w.shape[0], (firsts, w.shape)
    if isinstance(w, Packed) and any(first % w.format.tile_rows for first in firsts[:-1]):
        w = decode(w)
    if not isinstance(w, Packed):
        return list(torch.split(w, list(sizes)))
    return [
        Packed(w.format, count, w.columns, w.data[w.format.tiles(first) :][: w.format.tiles(count)])
        for first, count in zip(firsts[:-1], sizes, strict=True)
    ]


def bytes_of(w: Weight) -> Tensor:
    """What lies in memory: of a packed matrix its tiles."""
    return w.data if isinstance(w, Packed) else w


def code_of(w: Weight) -> int:
    """The number that native calls take."""
    return w.format.code if isinstance(w, Packed) else floats.CODES[w.dtype]


def stride_bytes(w: Weight) -> int:
    """From one tile to the next; of a plain tensor from one row to the next."""
    data = bytes_of(w)
    return data.stride(0) * data.element_size()


def nbytes_of(w: Weight) -> int:
    """Without what lies between rows."""
    data = bytes_of(w)
    return data.numel() * data.element_size()
