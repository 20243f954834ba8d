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


def check(
    kind: str, rows: slice, index: Array | None = None, zeros_are: int = 1, **config: object
) -> None:
    """Packs such a matrix, whose columns are of the groups `index`, and compares all values."""
    random = np.random.default_rng(7)
    columns, count, group = 320, 200, 32
    codes = random.integers(0, 16, (columns, count))
    zeros = random.integers(1, 16, (columns // group, count))
    scale = random.random((columns // group, count)).astype(np.float16)
    parts = stored(kind, codes, zeros + 1 - zeros_are, scale)
    if index is not None:
        parts["order"] = index.astype("<i4")
    tags = {"<i4": "I32", "<f2": "F16"}
    told = {name: Stored(tags[x.dtype.str], x.shape) for name, x in parts.items()}
    recipe = recipe_of(told, {"quant_method": kind, "bits": 4, **config})
    assert recipe.shape == (count, columns)
    taken, form = len(range(count)[rows]), recipe.format
    out = np.full((form.tiles(taken), form.tile_nbytes(columns)), 0xFF, np.uint8)
    recipe.pack(parts, rows, form, out)
    of = np.arange(columns) // group if index is None else index
    truth = (codes - zeros[of]) * scale.astype(np.float32)[of]
    got = int4.decode(out, form, columns)
    assert np.array_equal(got[:taken], truth.T[rows])
    assert not got[taken:].any()


@pytest.mark.parametrize("rows", [slice(0, 200, 1), slice(0, 200, 2), slice(24, 48, 1)])
@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_values_are_those_that_were_stored(kind: str, rows: slice) -> None:
    check(kind, rows)


MIXED = np.random.default_rng(1).permutation(320) // 32
IN_ORDER = np.arange(320) // 32


@pytest.mark.parametrize("rows", [slice(0, 200, 1), slice(1, 200, 2), slice(100, 164, 1)])
def test_groups_of_columns_from_anywhere(rows: slice) -> None:
    check("gptq", rows, MIXED, desc_act=True)
    check("gptq", rows, MIXED)
    check("gptq", rows, IN_ORDER, desc_act=True)
    check("gptq", rows, IN_ORDER, desc_act=False)


def test_zero_points_of_the_second_version_are_as_they_are() -> None:
    check("gptq", slice(0, 200, 1), MIXED, zeros_are=0, checkpoint_format="gptq_v2")


@pytest.mark.parametrize(
    ("index", "config", "said"),
    [
        (MIXED, {"desc_act": False}, "order"),
        (np.where(MIXED == 3, 4, MIXED), {}, "sizes"),
        (MIXED - 1, {}, "sizes"),
        (np.where(np.arange(320) == 5, 1 << 30, MIXED), {}, "sizes"),
        (MIXED[:-1], {}, "319"),
    ],
)
def test_an_order_that_is_none_is_refused(
    index: Array, config: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        check("gptq", slice(0, 200, 1), index, **config)
