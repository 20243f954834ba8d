"""Gates, decay and lookups of the native pool, to the last bits, on every instruction set."""

import math
from collections.abc import Iterator

import pytest
import torch

from headrace import _native

LAST_BIT = 2.0**-23


@pytest.fixture(scope="module", params=_native.isas())
def pool(request: pytest.FixtureRequest) -> Iterator[_native.Pool]:
    made = _native.Pool(threads=3, pin=False, isa=request.param)
    yield made
    made.close()


def test_sigmoid_to_three_last_bits(pool: _native.Pool) -> None:
    x = torch.cat([torch.linspace(-80, 80, 40_001), torch.tensor([-1e30, -math.inf, math.inf])])
    y = torch.full_like(x, math.nan)
    pool.gate(0, x.data_ptr(), 1, 1, x.numel(), x.numel(), 0, y.data_ptr())
    exact = x.double().sigmoid()
    assert float(((y - exact) / exact)[:-3].abs().max()) < 3 * LAST_BIT
    assert (y[-3:] - exact[-3:]).abs().max() < 1e-37
    alone = torch.full((1,), math.nan)
    for i in (0, 17, 40_000):
        pool.gate(0, x[i:].data_ptr(), 1, 1, 1, 1, 0, alone.data_ptr())
        assert float(alone) == float(y[i])


def test_decay_is_rounded_once(pool: _native.Pool) -> None:
    tokens, heads = 3000, 5
    a, rate, bias = (
        torch.rand(tokens, heads) * 120 - 60,
        -torch.rand(heads).double(),
        torch.randn(heads),
    )
    y = torch.full_like(a, math.nan)
    pool.decay(a.data_ptr(), tokens, heads, heads, rate.data_ptr(), bias.data_ptr(), y.data_ptr())
    x = (a + bias).double()
    exact = rate * torch.where(x > 40, x, x.exp().log1p())
    assert float(((y - exact) / exact).abs().max()) <= LAST_BIT / 2 * 1.0001


def test_lookup_names_a_row_that_is_not_there(pool: _native.Pool) -> None:
    table, y = torch.randn(4, 3), torch.empty(2, 3)
    for bad in (-1, 4):
        ids = torch.tensor([0, bad])
        with pytest.raises(ValueError, match=f"row {bad} of a table of 4"):
            pool.lookup(table.data_ptr(), 0, 4, 3, 12, ids.data_ptr(), 2, y.data_ptr())
