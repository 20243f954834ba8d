"""INT4: nibbles less a zero point, times a 16-bit scale a group, from three published layouts. No
torch.

Where groups are columns from anywhere, as g_idx says, columns are stored group after group, behind
the order that tells which they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.formats.format import ORDERED, ORDERED_ROWS, ZEROS_SHIFT, Format
from headrace.formats.minifloat import pairs, unpaired
from headrace.formats.recipe import Array, Parts, as_float32, raw

BLOCK = 128  # rows that are transposed at once
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)  # place of each column's nibble in an int32


def pack(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """compressed-tensors: eight columns an int32, the first lowest; zero points packed along
    rows.
    """
    scale = parts["scale"]
    zeros = _nibbles(parts["zeros"].T).T[: scale.shape[0]] if "zeros" in parts else None
    zeros = None if zeros is None else zeros[rows]
    _put(raw(parts["codes"][rows]), scale[rows], zeros, out, _order(parts, format_))


def pack_awq(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """qweight [K, N/8], qzeros [G, N/8], scales [G, N]: nibbles of rows in AWQ's order."""
    zeros = _nibbles(parts["zeros"])[:, _of_eight(_AWQ, parts["scale"].shape[1])]
    _put(_pairs_awq(parts["qweight"])[rows], parts["scale"].T[rows], zeros.T[rows], out)


def pack_gptq(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """qweight [K/8, N], qzeros [G, N/8] less one, scales [G, N].

    Raises ValueError where g_idx is not what the format says of it.
    """
    _put_gptq(parts, rows, format_, out, 1)


def pack_gptq_v2(parts: Parts, rows: slice, format_: Format, out: Array) -> None:
    """As `pack_gptq`, with zero points that are stored as they are."""
    _put_gptq(parts, rows, format_, out, 0)


def _put_gptq(parts: Parts, rows: slice, format_: Format, out: Array, less: int) -> None:
    codes = raw(_turned(parts["qweight"]))  # eight columns of a word are four pairs as they are
    zeros = _nibbles(parts["zeros"]) + less
    order = _order(parts, format_)
    _put(codes[rows], parts["scale"].T[rows], zeros.T[rows], out, order)


def _order(parts: Parts, format_: Format) -> Array | None:
    """The column that each stored one is, uint16 [K]; None where the format has columns in order.

    Raises ValueError where the groups of g_idx are not of one size, or have an order and should
    not.
    """
    index = parts.get("order")
    if index is None:
        return None
    in_order = np.arange(index.shape[0]) // format_.group
    if not format_.order_bytes:
        if not np.array_equal(index, in_order) and not (index == -1).all():
            raise ValueError("columns have an order of their own (g_idx), desc_act denies it")
        return None
    if (index == -1).all():  # written by nobody: no order
        index = in_order
    order = np.argsort(index, kind="stable")
    if not np.array_equal(index[order], in_order):
        raise ValueError(f"g_idx has groups of other sizes than {format_.group} columns")
    return order.astype(np.uint16)


def _put(
    codes: Array, scale: Array, zeros: Array | None, out: Array, order: Array | None = None
) -> None:
    if order is None:
        _put_rows(codes, scale, zeros, out)
        return
    head = 2 * len(order)
    behind = out[:, head:].reshape(len(out), ORDERED_ROWS, -1)
    out[:, :head] = raw(order)
    for tile, rows in enumerate(behind):
        at = slice(tile * ORDERED_ROWS, (tile + 1) * ORDERED_ROWS)
        taken = pairs(unpaired(codes[at])[:, order])
        _put_rows(taken, scale[at], None if zeros is None else zeros[at], rows[: len(taken)])
        rows[len(taken) :] = 0


def _put_rows(codes: Array, scale: Array, zeros: Array | None, out: Array) -> None:
    groups = scale.shape[1]
    out[:, : 2 * groups] = raw(scale)
    at = 2 * groups
    if zeros is not None:
        out[:, at : at + groups] = zeros
        at += groups
    out[:, at:] = codes


def _pairs_awq(qweight: Array) -> Array:
    """[K, N/8] words of eight rows -> [N, K/2], the even column in the low nibble."""
    columns, eights = qweight.shape
    words = raw(_turned(qweight)).reshape(eights, columns, 4)
    bytes_ = np.ascontiguousarray(words.transpose(2, 0, 1))  # [4, N/8, K]: two rows a byte
    even, odd = (np.ascontiguousarray(bytes_[:, :, side::2]) for side in range(2))
    out = np.empty((eights, 8, columns // 2), np.uint8)
    for to, place in enumerate(_AWQ):
        e, o = even[place // 2], odd[place // 2]
        out[:, to] = e >> 4 | o & 0xF0 if place % 2 else e & 15 | o << 4
    return out.reshape(eights * 8, columns // 2)


def _turned(x: Array) -> Array:
    """The transpose, by blocks: all at once, it would miss the cache with every word."""
    out = np.empty(x.shape[::-1], x.dtype)
    for at in range(0, x.shape[0], BLOCK):
        out[:, at : at + BLOCK] = x[at : at + BLOCK].T
    return out


def _nibbles(x: Array) -> Array:
    """[M, W] int32 -> [M, 8W] codes, lowest first."""
    return unpaired(raw(np.ascontiguousarray(x)).reshape(x.shape[0], -1))


def _of_eight(order: tuple[int, ...], count: int) -> Array:
    eight = np.arange(0, count, 8)[:, None]
    index: Array = (eight + np.array(order)).reshape(-1)
    return index


def decode(tiles: Array, format_: Format, columns: int) -> Array:
    """float32 [rows, columns]; of whole tiles."""
    if format_.order_bytes:
        return _decode_ordered(tiles, format_, columns)
    groups = columns // format_.group
    bits = raw(tiles[:, : 2 * groups]).view(np.uint16)
    scale = as_float32(bits if format_.code & 255 == 9 else bits.view(np.float16))
    zero: Array | int = 8
    at = 2 * groups
    if format_.code >> ZEROS_SHIFT & 1:
        zero = tiles[:, at : at + groups].astype(np.float32).repeat(format_.group, 1)
        at += groups
    codes = unpaired(tiles[:, at:]).astype(np.float32)
    values: Array = (codes - zero) * scale.repeat(format_.group, 1)
    return values


def _decode_ordered(tiles: Array, format_: Format, columns: int) -> Array:
    plain = replace(format_, code=format_.code - ORDERED, order_bytes=0, group_bytes=0, tile_rows=1)
    values = np.empty((len(tiles), ORDERED_ROWS, columns), np.float32)
    for tile, to in zip(tiles, values, strict=True):
        order = raw(tile[: 2 * columns]).view(np.uint16)
        stored = tile[2 * columns :].reshape(ORDERED_ROWS, -1)
        to[:, order] = decode(stored, plain, columns)
    return values.reshape(-1, columns)


def encode(w: Array, group: int) -> dict[str, Array]:
    """Symmetric, as compressed-tensors stores it, with float16 scales."""
    split = w.reshape(w.shape[0], -1, group)
    scale = np.maximum(np.abs(split).max(-1) / 7, 1e-7).astype(np.float16)
    codes = np.rint(split / scale.astype(np.float32)[..., None]).clip(-8, 7) + 8
    return {"codes": pairs(codes.reshape(w.shape).astype(np.uint8)).view("<i4"), "scale": scale}
