"""NVFP4: E2M1, an E4M3 scale for 16 columns of a row, a float32 one for the matrix. No torch."""

from __future__ import annotations

import numpy as np

from headrace.formats.format import Format
from headrace.formats.minifloat import E2M1, E4M3, pairs, to_e2m1, to_e4m3, unpaired
from headrace.formats.recipe import Array, Parts, as_float32, raw


def pack(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """The matrix's scale (ModelOpt), or what divides (compressed-tensors), in every row."""
    if "whole" in parts:
        whole = as_float32(parts["whole"]).reshape(-1)[:1]
    else:
        whole = np.float32(1) / as_float32(parts["divisor"]).reshape(-1)[:1]
    codes, scale = parts["codes"], parts["scale"]
    groups = scale.shape[-1]
    out[:, :4] = raw(whole)
    out[:, 4 : 4 + groups] = scale[rows]
    out[:, 4 + groups :] = codes[rows]


def decode(tiles: Array, format_: Format, columns: int) -> Array:
    """float32 [rows, columns]."""
    groups = columns // format_.group
    whole = raw(tiles[:, :4]).view(np.float32)
    scale = E4M3[tiles[:, 4 : 4 + groups]] * whole
    values: Array = E2M1[unpaired(tiles[:, 4 + groups :])] * scale.repeat(format_.group, 1)
    return values


def encode(w: Array, format_: Format) -> dict[str, Array]:
    """codes, scales and the whole's scale, as ModelOpt stores them."""
    split = w.reshape(w.shape[0], -1, format_.group)
    whole = np.maximum(np.abs(w).max() / (6 * 448), 1e-30).astype(np.float32)
    scale = to_e4m3(np.abs(split).max(-1) / 6 / whole)
    step = (E4M3[scale] * whole)[..., None]
    codes = to_e2m1(split / np.where(step > 0, step, 1)).reshape(w.shape)
    return {"codes": pairs(codes), "scale": scale, "whole": whole.reshape(())}
