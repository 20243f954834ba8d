"""AWQ and GPTQ as their own tools store them, against the values that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.formats import int4
from headrace.formats.schemes import Stored, recipe_of

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of a group of eight in each nibble of a word
Array = np.ndarray


def words(codes: Array, order: tuple[int, ...]) -> Array:
    """[M, 8W] codes -> [M, W] int32: nibble i holds column `order[i]` of each eight."""
    eights = codes.reshape(len(codes), -1, 8).astype(np.uint32)
    made = sum(eights[:, :, column] << np.uint32(4 * i) for i, column in enumerate(order))
    return np.asarray(made, np.uint32).view("<i4")


def stored(kind: str, codes_KN: Array, zeros_GN: Array, scale_GN: Array) -> dict[str, Array]:
    plain = tuple(range(8))
    if kind == "awq":
        return {
            "qweight": words(codes_KN, AWQ_ORDER),
            "zeros": words(zeros_GN, AWQ_ORDER),
            "scale": scale_GN,
        }
    down = np.ascontiguousarray(words(codes_KN.T, plain).T)
    return {"qweight": down, "zeros": words(zeros_GN - 1, plain), "scale": scale_GN}


@pytest.mark.parametrize("rows", [slice(0, 48, 1), slice(0, 48, 2), slice(24, 48, 1)])
@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_values_are_those_that_were_stored(kind: str, rows: slice) -> None:
    random = np.random.default_rng(7)
    columns, count, group = 320, 48, 32
    codes = random.integers(0, 16, (columns, count))
    zeros = random.integers(1, 16, (columns // group, count))
    scale = random.random((columns // group, count)).astype(np.float16)
    parts = stored(kind, codes, zeros, scale)
    tags = {"<i4": "I32", "<f2": "F16"}
    told = {name: Stored(tags[x.dtype.str], x.shape) for name, x in parts.items()}
    recipe = recipe_of(told, {"quant_method": kind, "bits": 4})
    assert recipe.shape == (count, columns)
    taken = len(range(count)[rows])
    out = np.full((taken, recipe.format.tile_nbytes(columns)), 0xFF, np.uint8)
    recipe.pack(parts, rows, recipe.format, out)
    truth = (codes - zeros.repeat(group, 0)) * scale.astype(np.float32).repeat(group, 0)
    assert np.array_equal(int4.decode(out, recipe.format, columns), truth.T[rows])
