"""Loaded weights as tensors: views into the arenas, and copies only where rows do not lie whole in
the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from headrace import _native
from headrace.formats.float import DTYPES
from headrace.formats.packed import Packed, Weight
from headrace.weights.arena import Arena
from headrace.weights.loader import SMALL_BYTES, Reading
from headrace.weights.pieces import AnyPiece, PackedPiece, Piece
from headrace.weights.plan import WeightPlan

DISCARD_BYTES = 2 << 20  # a huge page: less is not given back
Tensors = Mapping[str, tuple[Weight, ...]]  # canonical name -> whole, or one per expert


def tensors_of(plan: WeightPlan, reading: Reading) -> Tensors:
    """All tensors of a plan whose bytes have been read (`reading.wait()` has returned)."""
    users: dict[str, list[tuple[str, int, Piece]]] = {}
    made: dict[tuple[str, int], list[Weight]] = {}
    for name, pieces in plan.pieces.items():
        for at, piece in enumerate(pieces):
            if isinstance(piece, PackedPiece):
                made[name, at] = [_tiles(piece, reading)]
            else:
                users.setdefault(piece.stored.name, []).append((name, at, piece))
    # Source by source, so that the memory of one that is copied is returned before the next copy is
    # made.
    for stored in plan.stored:
        base = _base(users[stored.name][0][2], reading)
        if all(_slabs(piece) for _, _, piece in users[stored.name]):
            copies = _copy_slabs(base, [piece for _, _, piece in users[stored.name]])
            for (name, at, _), copy in zip(users[stored.name], copies, strict=True):
                made[name, at] = [copy]
            continue
        for name, at, piece in users[stored.name]:
            packed = piece.format.packed
            made[name, at] = [*_rows(base, piece)] if packed else [_view(base, piece)]
    return {name: _joined(name, pieces, made) for name, pieces in plan.pieces.items()}


def _joined(
    name: str, pieces: tuple[AnyPiece, ...], made: Mapping[tuple[str, int], list[Weight]]
) -> tuple[Weight, ...]:
    return tuple(weight for at in range(len(pieces)) for weight in made[name, at])


def _tiles(piece: PackedPiece, reading: Reading) -> Packed:
    place = reading.take_packed(piece)
    flat = torch.frombuffer(place.arena.buffer(place.offset, piece.nbytes), dtype=torch.uint8)
    return Packed(piece.format, piece.count, piece.columns, flat.view(_tile_shape(piece)))


def _tile_shape(piece: PackedPiece) -> tuple[int, int]:
    return piece.format.tiles(piece.count), piece.format.tile_nbytes(piece.columns)


def _view(base: Tensor, piece: Piece) -> Tensor:
    view = base.as_strided(piece.view.shape, piece.view.strides, piece.view.start)
    return view if piece.in_place else _copy(view)


def _rows(base: Tensor, piece: Piece) -> list[Weight]:
    """Packed rows where they lie: a matrix, or one for each of a stack."""
    *lead, rows, columns = piece.view.shape
    nbytes = piece.format.tile_nbytes(columns)
    if piece.format.tile_rows > 1:  # of a folder of our own, whole and dense
        shape = (piece.format.tiles(rows), nbytes)
        return [Packed(piece.format, rows, columns, base.view(shape))]
    *apart, step, _ = (n // columns * nbytes for n in piece.view.strides)
    start = piece.view.start // columns * nbytes
    firsts = [start + e * apart[0] for e in range(lead[0])] if lead else [start]
    return [
        Packed(piece.format, rows, columns, base.as_strided((rows, nbytes), (step, 1), first))
        for first in firsts
    ]


def _base(piece: Piece, reading: Reading) -> Tensor:
    """The stored tensor, flat; bytes where it is packed."""
    stored = piece.stored
    dtype = torch.uint8 if stored.format.packed else DTYPES[stored.format]
    if stored.nbytes == 0:
        return torch.empty(0, dtype=dtype)
    place = reading.take(stored.name)
    buffer = place.arena.buffer(place.offset, stored.nbytes)
    return torch.frombuffer(buffer, dtype=dtype)


def _slabs(piece: Piece) -> bool:
    """A stack to be copied, large and stored matrix after matrix."""
    shape, strides, stored = piece.view.shape, piece.view.strides, piece.stored
    if piece.in_place or stored.nbytes < SMALL_BYTES or len(shape) != 3 or 0 in shape:
        return False
    reach = piece.view.start + sum((n - 1) * s for n, s in zip(shape[1:], strides[1:], strict=True))
    return reach < strides[0] and shape[0] * strides[0] == prod(stored.shape)


def _copy_slabs(base: Tensor, pieces: list[Piece]) -> list[Tensor]:
    """Matrix by matrix; what is copied is given back, so that no layer is held twice."""
    views = [base.as_strided(p.view.shape, p.view.strides, p.view.start) for p in pieces]
    copies = [_empty(view) for view in views]
    step, begin = views[0].stride(0) * base.element_size(), base.data_ptr()
    for e in range(len(views[0])):
        for copy, view in zip(copies, views, strict=True):
            copy[e].copy_(view[e])
        end = base.data_ptr() + (e + 1) * step
        if end - begin >= DISCARD_BYTES:
            _native.discard(begin, end - begin)
            begin = end // DISCARD_BYTES * DISCARD_BYTES
    return copies


def _empty(view: Tensor) -> Tensor:
    """Dense, of the same shape, on huge pages."""
    nbytes = view.numel() * view.element_size()
    return torch.frombuffer(Arena(nbytes).buffer(0, nbytes), dtype=view.dtype).view(view.shape)


def _copy(view: Tensor) -> Tensor:
    """Dense; on huge pages like the rest where it fills some."""
    if view.numel() * view.element_size() < SMALL_BYTES:
        return view.clone(memory_format=torch.contiguous_format)
    return _empty(view).copy_(view)
