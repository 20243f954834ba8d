"""ggml's quantised blocks, as GGUF files hold them: plain decoding, a function a type. No torch.

A block has 32 columns, or 256 in sub-blocks whose scales are quantised themselves. Types of LANED
are put into tiles on their way into memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace import _native
from headrace.formats.format import LANE_ROWS, LANED, Format
from headrace.formats.lanes import rows_of
from headrace.formats.minifloat import E2M1, E8M0
from headrace.formats.recipe import Array, Parts, address, raw

_IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def decode(tiles: Array, format_: Format, columns: int) -> Array:
    """float32 [rows, columns]."""
    rows = rows_of(tiles, format_) if format_.tag in LANED else np.ascontiguousarray(tiles)
    blocks = rows.reshape(-1, format_.group_bytes // format_.tile_rows)
    values: Array = _DECODE[format_.tag](blocks).astype(np.float32).reshape(len(rows), columns)
    return values


def pack(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """Rows of blocks, as bytes, into tiles."""
    (blocks,) = parts.values()
    chosen = blocks[rows]
    assert chosen.strides[1] == out.strides[1] == 1
    columns = chosen.shape[1] * LANE_ROWS // format_.group_bytes * format_.group
    _native.put_in_lanes(
        format_.code, address(chosen), chosen.strides[0], len(chosen), columns, address(out),
        out.strides[0],
    )  # fmt: skip


def _half(b: Array, at: int) -> Array:
    return raw(b[:, at : at + 2]).view(np.float16).astype(np.float32)  # [B, 1]


def _split(q: Array) -> Array:
    """[B, 16] bytes -> the low nibbles of all, then the high ones."""
    return np.concatenate([q & 15, q >> 4], 1)


def _bits(b: Array, width: int) -> Array:
    """[B, n] bytes -> [B, 8/width, n]: the lowest `width` bits of all first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return b[:, None] >> shifts & np.uint8((1 << width) - 1)


def _q4_0(b: Array) -> Array:
    return (_split(b[:, 2:]).astype(np.float32) - 8) * _half(b, 0)


def _q5_0(b: Array) -> Array:
    fifth = np.unpackbits(b[:, 2:6], axis=1, bitorder="little") << 4
    return ((_split(b[:, 6:]) | fifth).astype(np.float32) - 16) * _half(b, 0)


def _q4_1(b: Array) -> Array:
    return _split(b[:, 4:]) * _half(b, 0) + _half(b, 2)


def _q5_1(b: Array) -> Array:
    fifth = np.unpackbits(b[:, 4:8], axis=1, bitorder="little") << 4
    return (_split(b[:, 8:]) | fifth) * _half(b, 0) + _half(b, 2)


def _q8_0(b: Array) -> Array:
    return raw(b[:, 2:]).view(np.int8).astype(np.float32) * _half(b, 0)


def _two_bits(q: Array) -> Array:
    """[B, 64] -> [B, 16, 16]: each 32 bytes hold four planes of 32 columns."""
    return np.concatenate([_bits(half, 2) for half in (q[:, :32], q[:, 32:])], 1).reshape(
        -1, 16, 16
    )


def _q2_k(b: Array) -> Array:
    scale = _half(b, 80) * (b[:, :16] & 15)
    least = _half(b, 82) * (b[:, :16] >> 4)
    return _two_bits(b[:, 16:80]) * scale[..., None] - least[..., None]


def _q3_k(b: Array) -> Array:
    packed = b[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], 1)
    high = _bits(packed[:, 8:], 2).reshape(-1, 16)
    scale = _half(b, 108) * ((low | high << 4).astype(np.float32) - 32)
    third = _bits(b[:, :32], 1).reshape(-1, 16, 16)
    codes = _two_bits(b[:, 32:96]).astype(np.float32) - 4 * (1 - third.astype(np.float32))
    return codes * scale[..., None]


def _scale_min(b: Array) -> tuple[Array, Array]:
    """[B, 8, 1] scales and minima of Q4_K and Q5_K, six bits each."""
    first, second, third = (b[:, at : at + 4] for at in (4, 8, 12))
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], 1)
    least = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], 1)
    return (_half(b, 0) * scale)[..., None], (_half(b, 2) * least)[..., None]


def _q4_k(b: Array) -> Array:
    scale, least = _scale_min(b)
    codes = _bits(b[:, 16:].reshape(-1, 32), 4).reshape(-1, 8, 32)
    return codes * scale - least


def _q5_k(b: Array) -> Array:
    scale, least = _scale_min(b)
    codes = _bits(b[:, 48:].reshape(-1, 32), 4).reshape(-1, 8, 32)
    return (codes | _bits(b[:, 16:48], 1) << 4) * scale - least


def _q6_k(b: Array) -> Array:
    low = _bits(b[:, :128].reshape(-1, 64), 4).reshape(-1, 16, 16)
    high = _two_bits(b[:, 128:192])
    scale = _half(b, 208) * raw(b[:, 192:208]).view(np.int8)
    return ((low | high << 4).astype(np.float32) - 32) * scale[..., None]


def _iq4_nl(b: Array) -> Array:
    return _IQ4[_split(b[:, 2:])] * _half(b, 0)


def _iq4_xs(b: Array) -> Array:
    high = raw(b[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], -1).reshape(-1, 8)
    scale = _half(b, 0) * ((low | high << 4).astype(np.float32) - 32)
    return _IQ4[_split(b[:, 8:].reshape(-1, 16))].reshape(-1, 8, 32) * scale[..., None]


def _mxfp4(b: Array) -> Array:
    return E2M1[_split(b[:, 1:])] * E8M0[b[:, :1]]


_DECODE: dict[str, Callable[[Array], Array]] = {
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "Q4_1": _q4_1,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
