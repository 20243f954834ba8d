"""Which stored tensors a model needs and how they are read, settled from headers alone. No torch.

Every needed tensor is found with its exact shape, and every stored one is used or known to be
needless, before the first byte of weights is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import CheckpointError
from headrace.weights.checkpoint import Checkpoint, StoredTensor
from headrace.weights.names import NameMap, View, views_of

Needs = Mapping[str, tuple[int, ...]]  # canonical name -> shape


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored tensor, or a strided part of it."""

    stored: StoredTensor
    view: View

    @property
    def in_place(self) -> bool:
        """False where it must be copied once: rows that are not contiguous, or elements off their
        alignment.
        """
        aligned = self.stored.offset % self.stored.format.element_bytes == 0
        return aligned and self.view.rows_in_place


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """`pieces`: canonical name -> the tensor in one piece, or one piece per expert in order."""

    pieces: Mapping[str, tuple[Piece, ...]]
    stored: tuple[StoredTensor, ...]  # by file and offset
    copied: frozenset[str]  # stored names of which at least one piece must be copied

    @property
    def total_bytes(self) -> int:
        return sum(t.nbytes for t in self.stored)

    def nbytes(self, name: str) -> int:
        """Bytes of a canonical tensor."""
        total = 0
        for piece in self.pieces[name]:
            count = 1
            for n in piece.view.shape:
                count *= n
            total += count * piece.stored.format.element_bytes
        return total


def plan_weights(
    checkpoint: Checkpoint, names: NameMap, needs: Needs, spare: frozenset[str] = frozenset()
) -> WeightPlan:
    """Matches files with needs. `spare`: canonical names that files may hold though nothing needs
    them.

    Raises CheckpointError on a missing, unexpected or misshapen tensor.
    """
    whole: dict[str, Piece] = {}
    single: dict[str, dict[int, Piece]] = {}
    used: dict[str, StoredTensor] = {}
    unexpected: list[str] = []
    for stored in checkpoint.tensors.values():
        if names.skips(stored.name):
            continue
        placed = names.place(stored.name)
        if placed is not None and spare.issuperset(placed.names):
            continue
        if placed is None or not all(n in needs for n in placed.names):
            unexpected.append(stored.name)
            continue
        views = views_of(stored.shape, placed.layouts)
        if views is None or len(views) != len(placed.names):
            raise _misshapen(stored, "more axes")
        used[stored.name] = stored
        for name, view in zip(placed.names, views, strict=True):
            piece = Piece(stored, view)
            if placed.expert is None:
                _check_shape(piece, needs[name])
                _put_once(whole, name, piece)
            else:
                _check_shape(piece, needs[name][1:])
                _put_once(single.setdefault(name, {}), placed.expert, piece)
    if unexpected:
        raise CheckpointError(
            f"{checkpoint.path}: {len(unexpected)} tensors that this architecture does not have: "
            + _few(unexpected),
            expected="the layout its config.json describes",
            fix="check that config and weights belong together",
        )
    pieces = _complete(checkpoint, needs, whole, single)
    copied = {p.stored.name for group in pieces.values() for p in group if not p.in_place}
    ordered = sorted(used.values(), key=lambda t: (t.file, t.offset))
    return WeightPlan(pieces, tuple(ordered), frozenset(copied))


def _complete(
    checkpoint: Checkpoint,
    needs: Needs,
    whole: Mapping[str, Piece],
    single: Mapping[str, Mapping[int, Piece]],
) -> dict[str, tuple[Piece, ...]]:
    pieces: dict[str, tuple[Piece, ...]] = {}
    missing: list[str] = []
    for name, shape in needs.items():
        if name in whole:
            pieces[name] = (whole[name],)
        elif name in single:
            experts = single[name]
            missing += [f"{name}[{e}]" for e in range(shape[0]) if e not in experts]
            extra = [e for e in experts if e >= shape[0]]
            if extra:
                raise CheckpointError(
                    f"{checkpoint.path}: {name} has an expert {extra[0]}",
                    expected=f"experts 0 to {shape[0] - 1}",
                    fix="check that config and weights belong together",
                )
            pieces[name] = tuple(experts[e] for e in sorted(experts))
        else:
            missing.append(name)
    if missing:
        raise CheckpointError(
            f"{checkpoint.path}: {len(missing)} tensors are missing: {_few(missing)}",
            expected=f"all {len(needs)} that the config asks for",
            fix="download the whole model again",
        )
    return pieces


def _put_once(table: dict[Any, Piece], key: object, piece: Piece) -> None:
    if key in table:
        raise CheckpointError(
            f"{piece.stored.file}: {piece.stored.name!r} and {table[key].stored.name!r}",
            expected="only one of them: they are the same tensor",
        )
    table[key] = piece


def _check_shape(piece: Piece, shape: tuple[int, ...]) -> None:
    if piece.view.shape != shape:
        raise _misshapen(
            piece.stored, f"{list(shape)} after layout, found {list(piece.view.shape)}"
        )
    _ = piece.stored.format  # an unknown dtype is an error here, before anything is read


def _misshapen(stored: StoredTensor, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{stored.file}: tensor {stored.name!r} has shape {list(stored.shape)}",
        expected=expected,
        fix="check that config and weights belong together",
    )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more
