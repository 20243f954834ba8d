"""MXFP4 and MXFP8: E2M1 or E4M3 with a power of two (E8M0) a group (OCP MX 1.0). No torch."""

from __future__ import annotations

import numpy as np

from headrace import _native
from headrace.formats.format import Format
from headrace.formats.minifloat import E2M1, E4M3, E8M0, pairs, to_e2m1, to_e4m3, to_e8m0, unpaired
from headrace.formats.recipe import Array, Parts, address, raw


def pack(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """The scales of a row, then its codes as they are stored."""
    codes, scale = parts["codes"], parts["scale"]
    groups = scale.shape[-1]
    out[:, :groups] = scale[rows]
    out[:, groups:] = codes.reshape(codes.shape[0], -1)[rows]


def pack_lanes(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """MXFP4 with groups of 32, into the tiles that GGUF's rows become."""
    codes = parts["codes"].reshape(parts["codes"].shape[0], -1)[rows]
    scale = parts["scale"][rows]
    assert codes.strides[1] == scale.strides[1] == out.strides[1] == 1
    _native.put_pairs_in_lanes(
        format_.code, address(scale), scale.strides[0], address(codes), codes.strides[0],
        len(codes), 2 * codes.shape[1], address(out), out.strides[0],
    )  # fmt: skip


def decode(tiles: Array, format_: Format, columns: int) -> Array:
    """float32 [rows, columns]."""
    groups = columns // format_.group
    codes = tiles[:, groups:]
    values = E4M3[codes] if format_.bits == 8 else E2M1[unpaired(codes)]
    scaled: Array = values * E8M0[raw(tiles[:, :groups])].repeat(format_.group, 1)
    return scaled


def encode(w: Array, format_: Format) -> dict[str, Array]:
    """codes and scales as published."""
    split = w.reshape(w.shape[0], -1, format_.group)
    scale = to_e8m0(np.abs(split).max(-1), 8 if format_.bits == 8 else 2)
    steps = split / E8M0[scale][..., None]
    codes = (to_e4m3(steps) if format_.bits == 8 else to_e2m1(steps)).reshape(w.shape)
    return {"codes": codes if format_.bits == 8 else pairs(codes), "scale": scale}
