"""Every packed format on every instruction set: rows, products and experts against the plain
decoders, and those against decoders that others wrote.
"""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import packed_weights
import pytest
import torch
from torch import Tensor

from headrace import _native
from headrace.formats import ggml
from headrace.formats.format import GGML, LANED, NVFP4, Format
from headrace.formats.packed import Packed, decode
from headrace.ops.entry.native import NativeLookup
from headrace.ops.experts import reference
from headrace.ops.experts.native import NativeExperts
from headrace.ops.linear.native import NativeLinear
from headrace.ops.table import Activation, ExpertRows, Linear, Routing

NAMES = list(packed_weights.ALL)


@pytest.fixture(scope="module", params=_native.isas())
def pool(request: pytest.FixtureRequest) -> Iterator[_native.Pool]:
    pool = _native.Pool(threads=2, isa=request.param)
    yield pool
    pool.close()


def columns_of(form: Format) -> list[int]:
    """The fewest, and an odd number of groups."""
    return [48, 200] if form.multiple == 1 else [form.multiple, 3 * form.multiple]


def nmse(got: Tensor, truth: Tensor) -> float:
    return float(((got.double() - truth) ** 2).sum() / (truth.double() ** 2).sum())


def takes_twelve_bits(pool: _native.Pool, form: Format, tokens: int) -> bool:
    four_bits = form.tag in ("Q4_0", "Q4_K") or form.name.startswith("int4")
    return pool.isa == "amx" and four_bits and tokens > 3


@pytest.mark.parametrize("form", GGML, ids=lambda f: f.tag)
def test_the_plain_decoder_is_the_one_of_the_gguf_package(form: Format) -> None:
    rows, columns = 37, 3 * form.multiple
    stored = packed_weights.blocks(form, rows, columns, np.random.default_rng(0))
    tiles = np.full((form.tiles(rows), form.tile_nbytes(columns)), 255, np.uint8)
    if form.tag in LANED:
        ggml.pack({form.tag: stored}, slice(0, rows), form, tiles)
        assert not ggml.decode(tiles, form, columns)[rows:].any()
    else:
        tiles[:] = stored
    w = Packed(form, rows, columns, torch.from_numpy(tiles))
    kind = gguf.GGMLQuantizationType[form.tag]
    assert np.array_equal(decode(w).numpy(), gguf.quants.dequantize(stored, kind))


@pytest.mark.parametrize("form", LANED.values(), ids=lambda f: f.tag)
def test_every_other_row_goes_into_tiles(form: Format) -> None:
    columns = 3 * form.multiple
    stored = packed_weights.blocks(form, 50, columns, np.random.default_rng(1))
    whole, odd = (np.empty((form.tiles(n), form.tile_nbytes(columns)), np.uint8) for n in (50, 25))
    ggml.pack({form.tag: stored}, slice(0, 50), form, whole)
    ggml.pack({form.tag: stored}, slice(1, 51, 2), form, odd)
    taken = ggml.decode(odd, form, columns)[:25]
    assert np.array_equal(taken, ggml.decode(whole, form, columns)[1:50:2])


@pytest.mark.parametrize("change", [{"format": 11}, {"count": 0}, {"tile_stride": 16 * 54 - 1}])
def test_tiles_that_cannot_be_are_refused(change: dict[str, int]) -> None:
    given = {"format": 10, "rows": 0, "row_stride": 54, "count": 1, "columns": 96, "tiles": 0}
    with pytest.raises(ValueError, match="put_in_lanes: found"):
        _native.put_in_lanes(**(given | {"tile_stride": 16 * 54} | change))


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_native_code(name: str) -> None:
    form = packed_weights.ALL[name]
    for columns in columns_of(form):
        assert _native.tile_nbytes(form.code, columns) == form.tile_nbytes(columns)
    if form.multiple > 1:
        with pytest.raises(ValueError, match="multiple"):
            _native.tile_nbytes(form.code, form.multiple + 1)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_exactly_those_of_the_plain_decoder(pool: _native.Pool, name: str) -> None:
    for columns in columns_of(packed_weights.ALL[name]):
        w = packed_weights.random(name, 19, columns)
        ids = torch.tensor([18, 0, 7, 8, 8])
        assert torch.equal(NativeLookup(pool)(w, ids), decode(w)[ids])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_products(pool: _native.Pool, name: str, exact: bool) -> None:
    linear = NativeLinear(pool, exact=exact)
    for columns in columns_of(packed_weights.ALL[name]):
        w = packed_weights.random(name, 37, columns)
        rough = torch.randn(11, columns).to(torch.bfloat16)
        made = Linear((w, rough, packed_weights.random(name, 3, columns, seed=1)))
        values = torch.cat([decode(part) for part in made.parts]).double()
        for tokens in (1, 2, 3, 5, 17):
            x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(tokens))
            x[:, :7] *= 30.0
            truth = x.double() @ values.T
            got = linear(x, made)
            # Nine bits of bfloat16 would leave 1e-6 and more; sixteen leave far less, twelve, which
            # codes of four bits meet on tiles, less (native/test/test_panels.cpp: in the mean).
            rounded = nmse(x.to(torch.bfloat16).double() @ values.T, truth)
            fine = rounded / (5 if takes_twelve_bits(pool, w.format, tokens) else 50)
            assert nmse(got[:, :37], truth[:, :37]) < (1e-11 if exact else min(fine, 1e-6))
            if exact:
                assert torch.equal(linear(x[-1:].clone(), made), got[-1:])


@pytest.mark.parametrize("form", [*LANED.values(), NVFP4], ids=lambda f: f.name)
def test_tiles_far_apart_that_are_walked_at_once(pool: _native.Pool, form: Format) -> None:
    """Enough rows for pieces of several streams, each of more than one tile."""
    columns = 5 * form.multiple
    w = packed_weights.random(form.name, 1100, columns)
    values = decode(w).double()
    for tokens in (1, 2, 3):
        x = torch.randn(tokens, columns)
        got = NativeLinear(pool, exact=False)(x, Linear((w,)))
        assert nmse(got, x.double() @ values.T) < 1e-7
        assert torch.equal(NativeLinear(pool, exact=False)(x[-1:].clone(), Linear((w,))), got[-1:])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_experts_of_mixed_formats(pool: _native.Pool, name: str, exact: bool) -> None:
    hidden = 512
    rows = ExpertRows(
        [packed_weights.random(name, 256, hidden, e) for e in range(3)],
        [packed_weights.random("q8_0", 256, hidden, e) for e in range(3)],
        [packed_weights.random(name, hidden, 256, 9 + e) for e in range(3)],
        Activation.SILU,
    )
    for tokens in (1, 6):
        generator = torch.Generator().manual_seed(tokens)
        x = torch.randn(tokens, hidden, generator=generator)
        ids = torch.stack([torch.randperm(3, generator=generator)[:2] for _ in range(tokens)])
        routing = Routing(ids.int(), torch.rand(tokens, 2, generator=generator))
        got = NativeExperts(pool, exact=exact)(x, routing, rows)
        truth = reference.experts(x, routing, rows)
        most = 4e-7 if takes_twelve_bits(pool, packed_weights.ALL[name], tokens) else 1e-7
        assert nmse(got, truth.double()) < (1e-10 if exact else most)


def test_a_stride_between_tiles(pool: _native.Pool) -> None:
    w = packed_weights.random("fp8", 21, 72)
    wide = torch.full((w.data.shape[0], w.data.shape[1] + 5), 255, dtype=torch.uint8)
    wide[:, :-5] = w.data
    apart = Packed(w.format, w.rows, w.columns, wide[:, :-5])
    x = torch.randn(2, 72)
    linear = NativeLinear(pool, exact=True)
    assert torch.equal(linear(x, Linear((apart,))), linear(x, Linear((w,))))


@pytest.mark.parametrize("name", ["fp8", "fp8-row", "mxfp8"])
@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_code_that_is_no_number_makes_its_row_none(
    pool: _native.Pool, name: str, code: int
) -> None:
    w = packed_weights.random(name, 5, 256)
    values = decode(w)
    w.data.view(-1)[-1 if name == "mxfp8" else -256 * 4 if name == "fp8" else -1] = code
    spoilt = decode(w).isnan().any(1)
    assert spoilt.sum() == 1
    for exact in (True, False):
        got = NativeLinear(pool, exact=exact)(torch.randn(2, 256), Linear((w,)))
        assert torch.equal(got.isnan().all(0), spoilt)
        assert not got[:, ~spoilt].isnan().any()
    assert not values.isnan().any()


@pytest.mark.parametrize("name", NAMES)
def test_a_tokens_bits_do_not_depend_on_two_more(pool: _native.Pool, name: str) -> None:
    """Nor on the rows that share a call: streams end where a matrix is cut among threads."""
    columns = columns_of(packed_weights.ALL[name])[1]
    w = packed_weights.random(name, 40, columns)
    part = Packed(w.format, 8, columns, w.data[: w.format.tiles(8)])
    linear = NativeLinear(pool, exact=False)
    x = torch.randn(3, columns)
    together = linear(x, Linear((w,)))
    for t in range(3):
        assert torch.equal(linear(x[t : t + 1].clone(), Linear((w,))), together[t : t + 1])
    assert torch.equal(linear(x[:1].clone(), Linear((part,))), together[:1, :8])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_many_tokens_bits_do_not_depend_on_how_many(
    pool: _native.Pool, name: str, exact: bool
) -> None:
    """Four and more, however a prompt is cut; and more columns than a panel has."""
    columns = 6 * columns_of(packed_weights.ALL[name])[1]
    w = packed_weights.random(name, 45, columns)
    linear = NativeLinear(pool, exact=exact)
    x = torch.randn(52, columns)
    together = linear(x, Linear((w,)))
    most = 4e-7 if takes_twelve_bits(pool, w.format, 52) else 1e-7  # bfloat16: 3e-6
    assert nmse(together, x.double() @ decode(w).double().T) < (1e-11 if exact else most)
    for first, end in ((0, 4), (7, 13), (40, 52)):
        assert torch.equal(linear(x[first:end].clone(), Linear((w,))), together[first:end])


@pytest.mark.parametrize("name", ["fp8", "fp8-row", "mxfp8"])
def test_every_code_of_eight_bits(pool: _native.Pool, name: str) -> None:
    w = packed_weights.random(name, 8, 256)
    w.data[:, -256:] = torch.arange(256, dtype=torch.uint8)
    got, truth = NativeLookup(pool)(w, torch.arange(8)), decode(w)
    assert truth.isnan().sum() in (2, 16)
    assert torch.equal(got.nan_to_num(7.0), truth.nan_to_num(7.0))
