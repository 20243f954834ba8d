"""`Pool.experts` of every instruction set against float64, bit for bit whatever shares the call."""

import pytest
import torch
from torch.nn import functional

from headrace import _native

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FORMATS = {dtype: i for i, dtype in enumerate(DTYPES)}


@pytest.fixture(scope="module", params=_native.isas())
def pool(request):
    pool = _native.Pool(threads=2, isa=request.param)
    yield pool
    pool.close()


def act(kind, g, u, alpha, limit):
    if kind == 0:
        return functional.silu(g) * u
    if kind == 1:
        if limit > 0:
            g, u = g.clamp(max=limit), u.clamp(-limit, limit)
        return g * torch.sigmoid(alpha * g) * (u + 1)
    return functional.gelu(g, approximate="tanh") * u


class Bank:
    """Experts' weights as tensors, the native layer over them, and the slow obvious sum."""

    def __init__(
        self, experts, hidden, width, dtype, *, kind=0, biases=False, interleaved=False, limit=0.0
    ):
        self.kind, self.limit, self.alpha = kind, limit, 1.702
        scale = hidden**-0.5
        both = (torch.randn(experts, width, 2, hidden) * scale * 2).to(dtype)
        self.down = (torch.randn(experts, hidden, width) * width**-0.5).to(dtype)
        if interleaved:
            self.gate, self.up = both[:, :, 0], both[:, :, 1]
        else:
            self.gate, self.up = both[:, :, 0].contiguous(), both[:, :, 1].contiguous()
        self.biases = [torch.randn(experts, n) for n in (width, width, hidden)] if biases else []
        names = ("gate_bias", "up_bias", "down_bias")
        size = self.down.element_size()
        self.layer = _native.ExpertLayer(
            format=FORMATS[dtype],
            hidden=hidden,
            width=width,
            activation=kind,
            gate=[w.data_ptr() for w in self.gate],
            up=[w.data_ptr() for w in self.up],
            down=[w.data_ptr() for w in self.down],
            gate_stride_bytes=self.gate.stride(1) * size,
            up_stride_bytes=self.up.stride(1) * size,
            down_stride_bytes=width * size,
            alpha=self.alpha,
            limit=limit,
            **{
                name: [row.data_ptr() for row in bias]
                for name, bias in zip(names, self.biases, strict=False)
            },
        )

    def native(self, pool, x, ids, weights, *, exact=True):
        y = torch.full_like(x, float("nan"))
        pool.experts(
            x.data_ptr(),
            x.shape[0],
            ids.data_ptr(),
            weights.data_ptr(),
            ids.shape[1],
            self.layer,
            y.data_ptr(),
            exact,
        )
        return y

    def truth(self, x, ids, weights):
        y = torch.zeros(x.shape, dtype=torch.float64)
        for t, row in enumerate(ids.tolist()):
            for k, e in enumerate(row):
                if e < 0:
                    continue
                gate, up = (
                    self.gate[e].double() @ x[t].double(),
                    self.up[e].double() @ x[t].double(),
                )
                if self.biases:
                    gate, up = gate + self.biases[0][e], up + self.biases[1][e]
                one = self.down[e].double() @ act(self.kind, gate, up, self.alpha, self.limit)
                if self.biases:
                    one = one + self.biases[2][e]
                y[t] += weights[t, k].double() * one
        return y


def routing(tokens, experts, top_k):
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).int()
    return ids, torch.rand(tokens, top_k)


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
        "format": 9,
        "activation": 5,
        "down_stride_bytes": 3,
        "up": [4096],
    }
    for name, value in wrong.items():
        given = {
            "format": 0,
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


def test_layer_states_its_size():
    bank = Bank(3, 16, 8, torch.bfloat16, biases=True)
    assert bank.layer.experts == 3
    assert bank.layer.row_nbytes == 3 * 16 * 8 * 2 + (8 + 8 + 16) * 4
