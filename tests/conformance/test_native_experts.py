"""`Pool.experts` of every instruction set against float64, bit for bit whatever shares the call."""

import pytest
import torch
from native_bank import DTYPES, Bank, routing

from headrace import _native


@pytest.fixture(scope="module", params=_native.isas())
def pool(request):
    pool = _native.Pool(threads=2, isa=request.param)
    yield pool
    pool.close()


def nmse(got, truth):
    return float(((got.double() - truth) ** 2).sum() / (truth**2).sum())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("hidden", "width"), [(1, 7), (63, 1), (100, 63), (7, 100), (300, 200)])
@pytest.mark.parametrize("exact", [True, False])
def test_equals_float64(pool, dtype, hidden, width, exact):
    torch.manual_seed(hidden)
    bank = Bank(8, hidden, width, dtype)
    for tokens in (1, 2, 3, 17, 64):
        x = torch.randn(tokens, hidden)
        ids, weights = routing(tokens, 8, 3)
        y = bank.native(pool, x, ids, weights, exact=exact)
        assert nmse(y, bank.truth(x, ids, weights)) < (1e-10 if exact else 1e-3)


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("limit", [0.0, 0.8])
def test_activations_biases_and_strides(pool, kind, interleaved, limit):
    torch.manual_seed(kind)
    bank = Bank(
        5, 90, 70, torch.bfloat16, kind=kind, biases=True, interleaved=interleaved, limit=limit
    )
    for tokens in (1, 9):
        x = torch.randn(tokens, 90) * 2
        ids, weights = routing(tokens, 5, 2)
        y = bank.native(pool, x, ids, weights)
        assert nmse(y, bank.truth(x, ids, weights)) < 1e-10


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("exact", [True, False])
def test_bits_do_not_depend_on_company(pool, dtype, exact):
    torch.manual_seed(3)
    bank = Bank(6, 130, 77, dtype, biases=True)
    x = torch.randn(37, 130)
    ids, weights = routing(37, 6, 3)
    ids[:, 1][ids[:, 1] == 4] = -1
    together = bank.native(pool, x, ids, weights, exact=exact)
    for t in (0, 1, 18, 36):
        one = slice(t, t + 1)
        alone = bank.native(
            pool, x[one].clone(), ids[one].clone(), weights[one].clone(), exact=exact
        )
        assert torch.equal(alone, together[one])
    few = bank.native(pool, x[4:15].clone(), ids[4:15].clone(), weights[4:15].clone(), exact=exact)
    assert torch.equal(few, together[4:15])


def test_ids_that_are_skipped_and_experts_for_all(pool):
    torch.manual_seed(4)
    bank = Bank(6, 64, 48, torch.float32)
    x = torch.randn(20, 64)
    ids, weights = torch.full((20, 3), -1, dtype=torch.int32), torch.rand(20, 3)
    assert torch.equal(bank.native(pool, x, ids, weights), torch.zeros_like(x))
    ids[:, 2] = 3  # one expert chosen by all, the others by nobody
    assert nmse(bank.native(pool, x, ids, weights), bank.truth(x, ids, weights)) < 1e-10
    ids[7] = torch.tensor([-1, -1, -1])
    y = bank.native(pool, x, ids, weights)
    assert torch.equal(y[7], torch.zeros(64))
    assert nmse(y, bank.truth(x, ids, weights)) < 1e-10


def test_order_of_choices_does_not_matter(pool):
    torch.manual_seed(5)
    bank = Bank(6, 64, 48, torch.bfloat16)
    x = torch.randn(4, 64)
    ids, weights = routing(4, 6, 4)
    turned = bank.native(pool, x, ids.flip(1).contiguous(), weights.flip(1).contiguous())
    assert torch.equal(bank.native(pool, x, ids, weights), turned)


def test_rescue_changes_no_bit(pool):
    torch.manual_seed(6)
    bank = Bank(8, 256, 192, torch.bfloat16)
    x = torch.randn(3, 256)
    ids, weights = routing(3, 8, 4)
    expected = bank.native(pool, x, ids, weights)
    rescuing = _native.Pool(threads=4, isa=pool.isa, rescue=True)
    for _ in range(50):
        assert torch.equal(bank.native(rescuing, x, ids, weights), expected)
    rescuing.quiesce()
    rescuing.close()


def test_refuses(pool):
    bank = Bank(2, 16, 8, torch.float32)
    ids, weights = torch.tensor([[2]], dtype=torch.int32), torch.ones(1, 1)
    with pytest.raises(ValueError, match="id 2 in a layer of 2"):
        bank.native(pool, torch.randn(1, 16), ids, weights)
    wrong = {
        "formats": (9, 0, 0),
        "activation": 5,
        "down_stride_bytes": 3,
        "up": [4096],
        "others": [((0, 0, 0), (64, 64, 32))],
        "form_of": [0, 1],
    }
    for name, value in wrong.items():
        given = {
            "formats": (0, 0, 0),
            "hidden": 16,
            "width": 8,
            "activation": 0,
            "gate": [4096, 8192],
            "up": [4096, 8192],
            "down": [4096, 8192],
            "gate_stride_bytes": 64,
            "up_stride_bytes": 64,
            "down_stride_bytes": 32,
        }
        with pytest.raises(ValueError, match="ExpertLayer"):
            _native.ExpertLayer(**{**given, name: value})


def test_forms_that_cannot_be():
    given = {
        "formats": (0, 0, 0), "hidden": 16, "width": 8, "activation": 0,
        "gate": [4096, 8192], "up": [4096, 8192], "down": [4096, 8192],
        "gate_stride_bytes": 64, "up_stride_bytes": 64, "down_stride_bytes": 32,
    }  # fmt: skip
    fits = ((1, 1, 0), (32, 32, 32))
    layer = _native.ExpertLayer(**given, others=[fits], form_of=[0, 1])
    first, second = 3 * 16 * 8 * 4, 2 * 16 * 8 * 2 + 16 * 8 * 4
    assert layer.row_nbytes == (first + second) / 2
    for others, form_of in (
        ([fits], [0, 2]),
        ([fits], [0]),
        ([((1, 1, 0), (30, 32, 32))], [0, 1]),
        ([((99, 1, 0), (32, 32, 32))], [0, 1]),
    ):
        with pytest.raises(ValueError, match="ExpertLayer"):
            _native.ExpertLayer(**given, others=others, form_of=form_of)


def test_layer_states_its_size():
    bank = Bank(3, 16, 8, torch.bfloat16, biases=True)
    assert bank.layer.experts == 3
    assert bank.layer.row_nbytes == 3 * 16 * 8 * 2 + (8 + 8 + 16) * 4
