"""Linear maps head by head: every packed format and instruction set against the reference, with the
same bits in any company, and halves of a stored matrix found in it where they lie.
"""

from __future__ import annotations

import packed_weights
import pytest
import torch
from random_tensors import Random
from torch import Tensor

from headrace import _native
from headrace.device.cpu import CpuDevice
from headrace.formats.packed import Packed, decode, row_blocks
from headrace.ops.choose import ops_for
from headrace.ops.reference import reference_ops
from headrace.ops.table import HeadLinear

HEADS, KEEP = 3, 8
FORMATS = [*packed_weights.ALL, "bfloat16"]
pytestmark = pytest.mark.usefixtures("nan_empties")


def maps(form: str, *, across: bool) -> HeadLinear:
    """The first or the second half of each head's rows."""
    if form == "bfloat16":
        stored = Random(3).normal(HEADS * 128, 256, dtype=torch.bfloat16)
    else:
        stored = packed_weights.random(form, HEADS * 128, 256, seed=3)
    return HeadLinear(tuple(row_blocks(stored, [64] * 2 * HEADS)[not across :: 2]), across)


def error(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).square().mean() / expected.square().mean())


@pytest.mark.parametrize("across", [True, False], ids=["across", "straight"])
@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("form", FORMATS)
def test_every_format(form: str, isa: str, *, across: bool) -> None:
    w = maps(form, across=across)
    x = Random(1).strided(70, HEADS, w.inputs + KEEP)
    expected = reference_ops().per_head(x, w, keep=KEEP)
    with CpuDevice(2, isa=isa, exact=True) as device:
        per_head = ops_for(device).per_head
        found = per_head(x, w, keep=KEEP)
        assert error(found, expected) < 1e-10
        for first, count in ((0, 1), (69, 1), (5, 3), (9, 17)):
            part = per_head(x[first : first + count], w, keep=KEEP)
            assert torch.equal(part, found[first : first + count])
    with CpuDevice(1, isa=isa, exact=True) as device:
        assert torch.equal(ops_for(device).per_head(x, w, keep=KEEP), found)


@pytest.mark.parametrize("isa", _native.isas())
def test_more_tokens_than_are_summed_at_once(isa: str) -> None:
    w = maps("fp8", across=True)
    x = Random(2).normal(300, HEADS, w.inputs)
    with CpuDevice(2, isa=isa, exact=True) as device:
        per_head = ops_for(device).per_head
        found = per_head(x, w)
        assert error(found, reference_ops().per_head(x, w)) < 1e-10
        assert torch.equal(per_head(x[120:260], w), found[120:260])


@pytest.mark.parametrize("form", packed_weights.ALL)
@pytest.mark.parametrize("sizes", [(64, 128, 64), (3, 4, 5, 9), (24, 8, 13)])
def test_blocks_of_rows(form: str, sizes: tuple[int, ...]) -> None:
    stored = packed_weights.random(form, sum(sizes), 256)
    whole = decode(stored)
    blocks = row_blocks(stored, sizes)
    assert torch.equal(torch.cat([decode(block) for block in blocks]), whole)
    tall = stored.format.tile_rows
    fits = all(sum(sizes[:i]) % tall == 0 for i in range(len(sizes)))
    for block in blocks:  # in place, unless tiles reach over their bounds
        assert isinstance(block, Packed) == fits
        if isinstance(block, Packed):
            offset = block.data_ptr() - stored.data_ptr()
            assert 0 <= offset < stored.data.nbytes


def test_heads_of_unequal_rows_are_refused() -> None:
    w = HeadLinear((torch.ones(4, 8), torch.ones(5, 8)))
    with (
        CpuDevice(1, exact=True) as device,
        pytest.raises(ValueError, match="heads of 5 and 4 rows; expected as many"),
    ):
        ops_for(device).per_head(torch.ones(1, 2, 8), w)
