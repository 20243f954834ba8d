"""Which stored tensors a model needs and how they are read, settled from headers alone. No torch.

Every needed tensor is found with its exact shape, and every stored one is used or known to be
needless, before the first byte of weights is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from headrace.errors import CheckpointError
from headrace.formats.format import FLOAT32, Format
from headrace.weights.checkpoint import Checkpoint, StoredTensor
from headrace.weights.names import NameMap, Placed, View, views_of
from headrace.weights.pieces import AnyPiece, PackedPiece, Piece, Slice
from headrace.weights.quantised import Quantised, cut, quantisation_of, recipe_for, split_stored

Needs = Mapping[str, tuple[int, ...]]  # canonical name -> shape


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """`pieces`: canonical name -> the tensor in one piece, or one piece per expert in order."""

    pieces: Mapping[str, tuple[AnyPiece, ...]]
    stored: tuple[StoredTensor, ...]  # read as they are, by file and offset
    copied: frozenset[str]  # stored names of which at least one piece is copied

    @property
    def total_bytes(self) -> int:
        """Of the files."""
        return sum(t.nbytes for t in self.stored) + sum(part.nbytes for part in self.parts)

    @property
    def parts(self) -> tuple[Slice, ...]:
        """Of quantised matrices, each once."""
        seen: dict[tuple[object, int], Slice] = {}
        for piece in self.packed:
            seen |= {(part.file, part.offset): part for part in piece.parts.values()}
        return tuple(seen.values())

    @property
    def packed(self) -> tuple[PackedPiece, ...]:
        """Pieces that are packed while they are read."""
        groups = self.pieces.values()
        return tuple(p for group in groups for p in group if isinstance(p, PackedPiece))

    def nbytes(self, name: str) -> int:
        """Bytes of a canonical tensor in memory."""
        if is_expert_bias(name):
            return self.weights(name) * FLOAT32.element_bytes
        return sum(piece.nbytes for piece in self.pieces[name])

    def nbytes_of_each(self, name: str, count: int) -> list[int]:
        """The same for each of `count` experts."""
        group = self.pieces[name]
        if is_expert_bias(name) or len(group) == 1:
            return [self.nbytes(name) // count] * count
        return [piece.nbytes for piece in group]

    def weights(self, name: str) -> int:
        """Elements of a canonical tensor, whatever their format."""
        return sum(prod(piece.shape) for piece in self.pieces[name])

    def bytes_by_format(self) -> Counter[str]:
        """Name of a format -> bytes in memory."""
        weighed: Counter[str] = Counter()
        for group in self.pieces.values():
            for piece in group:
                weighed[piece.format.name] += piece.nbytes
        return weighed


def is_expert_bias(name: str) -> bool:
    """Held in float32, whatever the file has: kernels read nothing else."""
    return ".experts." in name and name.endswith(".bias")


class _Found:
    """Pieces under their canonical names, as they turn up."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.whole: dict[str, tuple[AnyPiece, ...]] = {}
        self.single: dict[str, dict[int, AnyPiece]] = {}
        self.used: dict[str, StoredTensor] = {}

    def put(self, name: str, expert: int | None, pieces: Sequence[AnyPiece], by: str) -> None:
        """`pieces`: the tensor, or a matrix for each of a stack; `by`: a file and a stored name."""
        stacked = len(self.needs[name]) == 3 and expert is None
        shape = pieces[0].shape
        if stacked and isinstance(pieces[0], PackedPiece):
            shape = (len(pieces), *shape)
        wanted = self.needs[name] if expert is None else self.needs[name][1:]
        if shape != wanted:
            raise CheckpointError(
                by,
                expected=f"{list(wanted)} after layout, found {list(shape)}",
                fix="check that config and weights belong together",
            )
        known = name in self.whole if expert is None else expert in self.single.get(name, {})
        if known:
            raise CheckpointError(
                f"{by} and is {name}, as another tensor is",
                expected="only one of them: they are the same tensor",
            )
        if expert is None:
            self.whole[name] = tuple(pieces)
        else:
            (piece,) = pieces
            self.single.setdefault(name, {})[expert] = piece


def plan_weights(
    checkpoint: Checkpoint, names: NameMap, needs: Needs, spare: frozenset[str] = frozenset()
) -> WeightPlan:
    """Matches files with needs. `spare`: canonical names that files may hold though nothing needs
    them.

    Raises CheckpointError on a missing, unexpected or misshapen tensor.
    """
    found = _Found(needs)
    unexpected: list[str] = []
    alone, quantised = split_stored(checkpoint)

    def place(name: str) -> Placed | None:
        """Where a needed tensor goes; None where it is skipped, spare or unexpected."""
        if names.skips(name):
            return None
        placed = names.place(name)
        if placed is not None and spare.issuperset(placed.names):
            return None
        if placed is None or not all(n in needs for n in placed.names):
            unexpected.append(name)
            return None
        return placed

    for stored in alone:
        if placed := place(stored.name):
            _put_stored(found, stored, placed)
    config = quantisation_of(checkpoint)
    for of in quantised:
        if placed := place(of.name):
            _put_quantised(found, of, placed, config)
    if unexpected:
        raise CheckpointError(
            f"{checkpoint.path}: {len(unexpected)} tensors that this architecture does not have: "
            + _few(unexpected),
            expected="the layout its config.json describes",
            fix="check that config and weights belong together",
        )
    pieces = _complete(checkpoint, needs, found.whole, found.single)
    copied = {
        p.stored.name
        for group in pieces.values()
        for p in group
        if isinstance(p, Piece) and not p.in_place
    }
    ordered = sorted(found.used.values(), key=lambda t: (t.file, t.offset))
    return WeightPlan(pieces, tuple(ordered), frozenset(copied))


def _put_stored(found: _Found, stored: StoredTensor, placed: Placed) -> None:
    views = views_of(stored.shape, placed.layouts)
    if views is None or len(views) != len(placed.names):
        raise _misshapen(stored, "more axes")
    form = stored.format  # an unknown dtype is an error here, before anything is read
    found.used[stored.name] = stored
    for name, view in zip(placed.names, views, strict=True):
        if form.packed and not _whole_rows(view, form):
            raise _misshapen(stored, f"whole rows of a multiple of {form.multiple} columns")
        by = f"{stored.file}: tensor {stored.name!r} has shape {list(stored.shape)}"
        found.put(name, placed.expert, [Piece(stored, view)], by)


def _put_quantised(found: _Found, of: Quantised, placed: Placed, config: Mapping[str, Any]) -> None:
    recipe = recipe_for(of, config)
    views = cut(of, recipe, placed.layouts)
    if views is None or len(views) != len(placed.names):
        raise _misshapen(replace(of.one, shape=recipe.shape), "a matrix or a stack of them")
    by = f"{of.one.file}: {of.name!r} has shape {list(recipe.shape)}"
    for name, pieces in zip(placed.names, views, strict=True):
        found.put(name, placed.expert, pieces, by)


def _whole_rows(view: View, form: Format) -> bool:
    """Tiles are not cut: every row is whole, and where the file has it."""
    columns = view.shape[-1]
    whole = view.strides[-1] == 1 and columns % form.multiple == 0
    return whole and all(n % columns == 0 for n in (*view.strides[:-1], view.start))


def _complete(
    checkpoint: Checkpoint,
    needs: Needs,
    whole: Mapping[str, tuple[AnyPiece, ...]],
    single: Mapping[str, Mapping[int, AnyPiece]],
) -> dict[str, tuple[AnyPiece, ...]]:
    pieces: dict[str, tuple[AnyPiece, ...]] = {}
    missing: list[str] = []
    for name, shape in needs.items():
        if name in whole:
            pieces[name] = whole[name]
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


def _misshapen(stored: StoredTensor, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{stored.file}: tensor {stored.name!r} has shape {list(stored.shape)}",
        expected=expected,
        fix="check that config and weights belong together",
    )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more
