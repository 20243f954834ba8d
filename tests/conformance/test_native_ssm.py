"""The recurrence of Mamba 2: a token has the same bits alone, in a run, however heads are cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headrace import _native
from headrace.device.cpu import CpuDevice
from headrace.ops.choose import ops_for
from headrace.ops.spans import Spans


def spans(tokens: int) -> Spans:
    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return Spans(ints(0, tokens), ints(0), ints(0)[None], torch.arange(tokens), ints(0), 4)


@pytest.mark.usefixtures("nan_empties")
@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("threads", [1, 16])  # 16 cut a head between them
def test_a_token_has_the_same_bits_alone_and_in_a_run(isa: str, threads: int) -> None:
    torch.manual_seed(5)
    tokens, heads, groups, rows, width = 9, 24, 3, 7, 100
    x, step = torch.randn(tokens, heads, width), torch.rand(tokens, heads)
    b, c = torch.randn(tokens, groups, rows), torch.randn(tokens, groups, rows)
    decay, skip = -torch.rand(tokens, heads), torch.randn(heads)
    start = torch.randn(1, heads, rows, width)

    state, out = start.double(), torch.empty(tokens, heads, width, dtype=torch.float64)
    for t in range(tokens):
        fed = (step[t, :, None] * x[t]).double()[:, None]
        each = heads // groups
        b_t, c_t = (v[t].double().repeat_interleave(each, 0)[:, :, None] for v in (b, c))
        state = state * decay[t].double().exp()[None, :, None, None] + (b_t * fed)[None]
        out[t] = (c_t * state[0]).sum(1) + (skip[:, None] * x[t]).double()

    with CpuDevice(threads, isa=isa, exact=True) as device:
        ops = ops_for(device)
        whole, alone = start.clone(), start.clone()
        run = ops.ssm(x, b, c, decay, step, skip, whole, spans(tokens))
        parts = [
            ops.ssm(*(v[t : t + 1] for v in (x, b, c, decay, step)), skip, alone, spans(1))
            for t in range(tokens)
        ]
    assert torch.equal(torch.cat(parts), run)
    assert torch.equal(alone, whole)
    torch.testing.assert_close(run.double(), out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(whole.double(), state, rtol=1e-5, atol=1e-5)
