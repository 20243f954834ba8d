"""Loaded weights as tensors: views into the arenas, and copies only where rows do not lie whole in
the file.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.formats.float import DTYPES
from headrace.weights.arena import Arena
from headrace.weights.loader import SMALL_BYTES, Reading
from headrace.weights.plan import Piece, WeightPlan

Tensors = Mapping[str, tuple[Tensor, ...]]  # canonical name -> whole, or one per expert


def tensors_of(plan: WeightPlan, reading: Reading) -> Tensors:
    """All tensors of a plan whose bytes have been read (`reading.wait()` has returned)."""
    users: dict[str, list[tuple[str, int]]] = {}
    for name, pieces in plan.pieces.items():
        for at, piece in enumerate(pieces):
            users.setdefault(piece.stored.name, []).append((name, at))
    made: dict[tuple[str, int], Tensor] = {}
    # Source by source, so that the memory of one that is copied is returned before the next copy is
    # made.
    for stored in plan.stored:
        base = _base(plan.pieces, users[stored.name], reading)
        for name, at in users[stored.name]:
            piece = plan.pieces[name][at]
            view = base.as_strided(piece.view.shape, piece.view.strides, piece.view.start)
            made[name, at] = view if piece.in_place else _copy(view)
    return {
        name: tuple(made[name, at] for at in range(len(pieces)))
        for name, pieces in plan.pieces.items()
    }


def _base(
    pieces: Mapping[str, tuple[Piece, ...]], users: list[tuple[str, int]], reading: Reading
) -> Tensor:
    """The stored tensor, flat."""
    stored = pieces[users[0][0]][users[0][1]].stored
    dtype = DTYPES[stored.format]
    if stored.nbytes == 0:
        return torch.empty(0, dtype=dtype)
    place = reading.take(stored.name)
    buffer = place.arena.buffer(place.offset, stored.nbytes)
    return torch.frombuffer(buffer, dtype=dtype)


def _copy(view: Tensor) -> Tensor:
    """Dense; on huge pages like the rest where it fills some."""
    if view.numel() * view.element_size() < SMALL_BYTES:
        return view.clone(memory_format=torch.contiguous_format)
    nbytes = view.numel() * view.element_size()
    dense = torch.frombuffer(Arena(nbytes).buffer(0, nbytes), dtype=view.dtype).view(view.shape)
    return dense.copy_(view)
