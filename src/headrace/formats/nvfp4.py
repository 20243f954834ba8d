"""NVFP4: E2M1, an E4M3 scale for 16 columns of a row, a float32 one for the matrix. No torch."""

from __future__ import annotations

import numpy as np

from headrace import _native
from headrace.formats.format import LANE_ROWS, NVFP4_COLUMNS, Format
from headrace.formats.lanes import rows_of
from headrace.formats.minifloat import E2M1, E4M3, pairs, to_e2m1, to_e4m3
from headrace.formats.recipe import Array, Parts, address, as_float32, raw


def pack(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """The matrix's scale (ModelOpt), or what divides (compressed-tensors), in every row."""
    if "whole" in parts:
        whole = as_float32(parts["whole"]).reshape(-1)[:1]
    else:
        whole = np.float32(1) / as_float32(parts["divisor"]).reshape(-1)[:1]
    codes, scale = parts["codes"][rows], parts["scale"][rows]
    assert codes.strides[1] == scale.strides[1] == out.strides[1] == 1
    _native.put_pairs_in_lanes(
        format_.code, address(scale), scale.strides[0], address(codes), codes.strides[0],
        len(codes), 2 * codes.shape[1], address(out), out.strides[0],
    )  # fmt: skip
    wholes = np.zeros(len(out) * LANE_ROWS, np.float32)
    wholes[: len(codes)] = whole
    out[:, : format_.head_bytes] = raw(wholes.reshape(len(out), LANE_ROWS))


def decode(tiles: Array, format_: Format, columns: int) -> Array:
    """float32 [rows, columns]."""
    whole = raw(tiles[:, : format_.head_bytes]).view(np.float32).reshape(-1, 1, 1)
    blocks = rows_of(tiles[:, format_.head_bytes :], format_).reshape(len(whole), -1, 18)
    scale = E4M3[blocks[..., :2]] * whole
    codes = np.stack([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], 2)
    values: Array = (E2M1[codes] * scale[..., None]).reshape(len(whole), -1)
    return values[:, :columns]


def encode(w: Array, format_: Format) -> dict[str, Array]:
    """codes, scales and the whole's scale, as ModelOpt stores them."""
    split = w.reshape(w.shape[0], -1, NVFP4_COLUMNS)
    whole = np.maximum(np.abs(w).max() / (6 * 448), 1e-30).astype(np.float32)
    scale = to_e4m3(np.abs(split).max(-1) / 6 / whole)
    step = (E4M3[scale] * whole)[..., None]
    codes = to_e2m1(split / np.where(step > 0, step, 1)).reshape(w.shape)
    return {"codes": pairs(codes), "scale": scale, "whole": whole.reshape(())}
