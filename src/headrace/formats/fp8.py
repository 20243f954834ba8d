"""FP8: E4M3 with a float32 scale for each block of rows and columns, or for each row. No torch."""

from __future__ import annotations

from functools import partial

import numpy as np

from headrace.formats.format import FP8_ROW, Format
from headrace.formats.minifloat import E4M3, E8M0, to_e4m3
from headrace.formats.recipe import Array, Pack, Parts, as_float32, raw


def _scales(x: Array) -> Array:
    """float32, bfloat16 or E8M0 as float32."""
    return E8M0[x] if x.dtype == np.uint8 else as_float32(x)


def pack_rows(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """One scale for the matrix, or one a row."""
    codes = parts["codes"]
    scale = _scales(parts["scale"]).reshape(-1)
    each = np.broadcast_to(scale, (codes.shape[0],)) if scale.size == 1 else scale
    out[:, :4] = raw(each[rows].reshape(-1, 1))
    out[:, 4:] = codes[rows]


def block_packer(tall: int) -> Pack:
    """For scales of `tall` rows."""
    return partial(_pack_blocks, tall)


def _pack_blocks(tall: int, parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    codes = parts["codes"][rows]
    high, columns = format_.tile_rows, codes.shape[1]
    taken = range(parts["codes"].shape[0])[rows]
    firsts = [taken[at] // tall for at in range(0, len(taken), high)]
    assert all(
        taken[min(at + high, len(taken)) - 1] // tall == first
        for at, first in zip(range(0, len(taken), high), firsts, strict=True)
    ), "rows of one tile share their scales"
    scales = raw(_scales(parts["scale"])[firsts])
    head = scales.shape[1]
    out[:, :head] = scales
    whole = len(taken) // high
    out[:whole, head:] = codes[: whole * high].reshape(whole, high * columns)
    if whole < len(out):
        rest = codes[whole * high :].reshape(-1)
        out[whole, head : head + rest.size] = rest
        out[whole, head + rest.size :] = 0


def decode(tiles: Array, format_: Format, columns: int) -> Array:
    """float32 [tiles * tile_rows, columns]."""
    if format_ == FP8_ROW:
        return E4M3[tiles[:, 4:]] * raw(tiles[:, :4]).view(np.float32)
    head = -(-columns // format_.group) * 4
    scales = raw(tiles[:, :head]).view(np.float32).repeat(format_.group, 1)[:, :columns]
    codes = tiles[:, head:].reshape(len(tiles), format_.tile_rows, columns)
    return (E4M3[codes] * scales[:, None]).reshape(-1, columns)


def encode_blocks(w: Array, tall: int = 128, wide: int = 128) -> dict[str, Array]:
    """codes [N, K] and float32 scales [N / tall, K / wide], ragged edges included."""
    rows, columns = w.shape
    blocks = np.zeros((-(-rows // tall) * tall, -(-columns // wide) * wide), np.float32)
    blocks[:rows, :columns] = w
    split = blocks.reshape(blocks.shape[0] // tall, tall, -1, wide)
    scale = np.maximum(np.abs(split).max((1, 3)) / 448, 1e-12).astype(np.float32)
    codes = to_e4m3(split / scale[:, None, :, None]).reshape(blocks.shape)
    return {"codes": codes[:rows, :columns], "scale": scale}


def encode_rows(w: Array) -> dict[str, Array]:
    """codes [N, K] and a float32 scale a row, [N, 1]."""
    scale = np.maximum(np.abs(w).max(1, keepdims=True) / 448, 1e-12).astype(np.float32)
    return {"codes": to_e4m3(w / scale), "scale": scale}
