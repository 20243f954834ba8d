"""`Pool.linear` of every instruction set against float64, bit for bit whatever shares the call."""

import pytest
import torch

from headrace import _native

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FORMATS = {dtype: i for i, dtype in enumerate(DTYPES)}


@pytest.fixture(scope="module", params=_native.isas())
def pool(request):
    pool = _native.Pool(threads=2, isa=request.param)
    yield pool
    pool.close()


def linear(pool, x, parts, bias=None, *, exact=True):
    columns = parts[0].shape[1]
    stride = parts[0].stride(0) * parts[0].element_size()
    matrix = _native.Matrix(
        [(w.data_ptr(), w.shape[0], stride, FORMATS[w.dtype]) for w in parts], columns
    )
    y = torch.full((x.shape[0], matrix.rows), float("nan"))
    pool.linear(
        x.data_ptr(),
        x.shape[0],
        matrix,
        0 if bias is None else bias.data_ptr(),
        y.data_ptr(),
        exact,
    )
    return y


def nmse(got, truth):
    return float(((got.double() - truth) ** 2).sum() / (truth**2).sum())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 7, 63, 100, 2000])
@pytest.mark.parametrize("exact", [True, False])
def test_equals_float64(pool, dtype, columns, exact):
    torch.manual_seed(columns)
    for tokens in (1, 2, 3, 17, 64):
        x = torch.randn(tokens, columns)
        w = torch.randn(75, columns).to(dtype)
        bias = torch.randn(75)
        y = linear(pool, x, [w[:10], w[10:]], bias, exact=exact)
        truth = x.double() @ w.double().T + bias.double()
        # Activations may be rounded to 8 bits of mantissa unless exact.
        assert nmse(y, truth) < (1e-11 if exact else 2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("exact", [True, False])
def test_bits_do_not_depend_on_company(pool, dtype, exact):
    torch.manual_seed(1)
    x = torch.randn(37, 777)
    w = torch.randn(130, 777).to(dtype)
    together = linear(pool, x, [w], exact=exact)
    for start, length in ((0, 1), (5, 1), (36, 1), (3, 2), (7, 4), (11, 25)):
        part = linear(pool, x[start : start + length].clone(), [w], exact=exact)
        assert torch.equal(part, together[start : start + length])


def test_bits_do_not_depend_on_threads_or_rescue(pool):
    torch.manual_seed(2)
    x = torch.randn(5, 300)
    w = torch.randn(400, 300).bfloat16()
    expected = linear(pool, x, [w])
    for threads, rescue in ((1, False), (3, False), (3, True)):
        other = _native.Pool(threads=threads, isa=pool.isa, rescue=rescue)
        assert torch.equal(linear(other, x, [w]), expected)
        other.close()


def test_rows_apart(pool):
    """A row stride longer than a row, as in a slice of columns."""
    w = torch.randn(33, 128).bfloat16()[:, :100]
    x = torch.randn(3, 100)
    assert nmse(linear(pool, x, [w]), x.double() @ w.double().T) < 1e-11


def test_nan_and_infinity_stay(pool):
    x = torch.zeros(2, 40)
    x[0, 3], x[1, 39] = float("nan"), float("inf")
    y = linear(pool, x, [torch.ones(9, 40)])
    assert y[0].isnan().all()
    assert y[1].isinf().all()


@pytest.mark.parametrize(
    ("parts", "columns", "stride", "code", "said"),
    [
        ([(4096, 3)], 0, 8, 1, "columns"),
        ([(4096, 3)], 8, 15, 1, "stride"),
        ([(4096, 3)], 8, 16, 77, "format"),
        ([(0, 3)], 8, 16, 1, "part"),
        ([], 8, 16, 1, "no parts"),
    ],
)
def test_matrix_refuses(parts, columns, stride, code, said):
    with pytest.raises(ValueError, match=said):
        _native.Matrix([(*part, stride, code) for part in parts], columns)


def test_pool_refuses():
    with pytest.raises(ValueError, match="expected one of: scalar"):
        _native.Pool(isa="pentium")
    with pytest.raises(ValueError, match="threads"):
        _native.Pool(threads=-3)


def test_isa_is_a_cap():
    names = _native.isas()
    for name in names:
        pool = _native.Pool(threads=1, isa=name)
        assert pool.isa == name
        pool.close()
    if "amx" not in names and "neon" not in names:
        assert _native.Pool(threads=1, isa="amx").isa == names[-1]


def test_busy_time_and_bandwidth_are_counted(pool):
    before = pool.busy_ns()
    linear(pool, torch.randn(4, 64), [torch.randn(64, 64)])
    assert pool.busy_ns() > before
    assert _native.measure_read_bandwidth(pool, 4 << 20, 0.01) > 0
