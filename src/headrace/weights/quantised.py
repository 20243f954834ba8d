"""Matrices that a file stores in parts: found among its tensors, and cut into the rows of each
expert. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import CheckpointError
from headrace.formats.format import LANED
from headrace.formats.schemes import Recipe, SchemeFault, Stored, recipe_of, role_of
from headrace.weights.checkpoint import GGUF, Checkpoint, StoredTensor
from headrace.weights.names import Layout, View, views_of
from headrace.weights.pieces import PackedPiece, Slice


@dataclass(frozen=True, slots=True)
class Quantised:
    """The stored parts of the matrix, or stack of matrices, that `name` stands for."""

    name: str
    parts: Mapping[str, StoredTensor]

    @property
    def one(self) -> StoredTensor:
        """For messages."""
        return next(iter(self.parts.values()))


def split_stored(checkpoint: Checkpoint) -> tuple[list[StoredTensor], list[Quantised]]:
    """Tensors that stand alone, and those that are packed: parts of something, or rows of blocks
    that become tiles. What nobody reads is in neither.
    """
    if checkpoint.dialect == GGUF:
        blocks = [t for t in checkpoint.tensors.values() if t.tag in LANED]
        packed = {t.name for t in blocks}
        alone = [t for t in checkpoint.tensors.values() if t.name not in packed]
        return alone, [Quantised(t.name, {t.tag: _as_bytes(t)}) for t in blocks]
    config = checkpoint.config
    text = config.get("text_config")
    nested = isinstance(text, dict) and text.get("quantization_config")
    if not (config.get("quantization_config") or config.get("compression_config") or nested):
        return list(checkpoint.tensors.values()), []
    groups: dict[str, dict[str, StoredTensor]] = {}
    for stored in checkpoint.tensors.values():
        role = role_of(stored.name)
        if role.part:
            parts = groups.setdefault(role.base, {})
            if role.part in parts:
                raise CheckpointError(
                    f"{stored.file}: {stored.name!r} and {parts[role.part].name!r}",
                    expected="only one of them: they are the same part of one matrix",
                )
            parts[role.part] = stored
    alone = [p["codes"] for p in groups.values() if list(p) == ["codes"]]
    made = [Quantised(base, p) for base, p in groups.items() if list(p) != ["codes"]]
    return alone, made


def _as_bytes(stored: StoredTensor) -> StoredTensor:
    *lead, columns = stored.shape
    return replace(stored, tag="U8", shape=(*lead, LANED[stored.tag].row_nbytes(columns)))


def quantisation_of(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The published `quantization_config`, wherever it stands."""
    config = checkpoint.config
    text = config.get("text_config")
    for table in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(table.get(key), dict):
                found: Mapping[str, Any] = table[key]
                return found
    return {}


def recipe_for(of: Quantised, config: Mapping[str, Any]) -> Recipe:
    """Raises CheckpointError for parts that no scheme knows."""
    stored = {part: Stored(t.tag, t.shape) for part, t in of.parts.items()}
    try:
        recipe = recipe_of(stored, config)
    except (SchemeFault, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{of.one.file}: {of.name!r} is stored as {error}",
            expected="FP8, MXFP8, MXFP4, NVFP4 or 4-bit integers in a published layout",
            fix="use a release of this model in one of these formats",
        ) from error
    if len(recipe.shape) not in (2, 3) or recipe.shape[-1] % recipe.format.multiple:
        raise CheckpointError(
            f"{of.one.file}: {of.name!r} has shape {list(recipe.shape)}",
            expected=f"a matrix or a stack, of a multiple of {recipe.format.multiple} columns",
        )
    return recipe


def cut(of: Quantised, recipe: Recipe, layouts: Iterable[Layout]) -> list[list[PackedPiece]] | None:
    """Pieces of each view that the layouts give, one a matrix of the stack; None where a layout
    does not fit. Quantised matrices are stored [out, in], so nothing is transposed.
    """
    layouts = list(layouts)
    if Layout.STACKED in layouts and len(recipe.shape) == 3:
        layouts.remove(Layout.STACKED)
        recipe = replace(recipe, shape=_joined(recipe.shape))
        of = Quantised(
            of.name, {p: replace(t, shape=_joined(t.shape)) for p, t in of.parts.items()}
        )
    views = views_of(recipe.shape, [lay for lay in layouts if lay != Layout.TRANSPOSE])
    if views is None or any(len(v.shape) < 2 or v.strides[-1] != 1 for v in views):
        return None
    stack = recipe.shape[0] if len(recipe.shape) == 3 else 1
    whole = _slices(of, stack if len(recipe.shape) == 3 else None)
    return [
        [_piece(recipe, whole[e], view.slice(0, e, 1, 1), e) for e in range(stack)]
        if len(recipe.shape) == 3
        else [_piece(recipe, whole[0], view, 0)]
        for view in views
    ]


def _joined(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Matrices as one."""
    return (shape[0] * shape[1], *shape[2:])


def _piece(recipe: Recipe, parts: Mapping[str, Slice], view: View, matrix: int) -> PackedPiece:
    rows, columns = recipe.shape[-2:]
    first = view.start // columns - matrix * rows
    step = max(view.strides[-2] // columns, 1)
    return PackedPiece(recipe, parts, first, view.shape[-2], step, view.shape[-1])


def _slices(of: Quantised, stack: int | None) -> list[dict[str, Slice]]:
    if stack is None:
        return [{p: Slice(t.file, t.offset, t.nbytes, t.tag, t.shape) for p, t in of.parts.items()}]
    made: list[dict[str, Slice]] = [{} for _ in range(stack)]
    for part, t in of.parts.items():
        shared = not t.shape or t.shape[0] != stack  # one for all of the stack
        each = t.nbytes if shared else t.nbytes // stack
        shape = t.shape if shared else t.shape[1:]
        for e, slices in enumerate(made):
            at = t.offset if shared else t.offset + e * each
            slices[part] = Slice(t.file, at, each, t.tag, shape)
    return made
