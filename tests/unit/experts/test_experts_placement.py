"""The bank counts its bytes, and resident experts are the op over the right layer's rows."""

from __future__ import annotations

import pytest
import torch

from headrace.experts.bank import ExpertBank
from headrace.experts.placement import Resident
from headrace.ops.reference import reference_ops
from headrace.ops.table import Activation, ExpertRows, Routing
from headrace.planning.facts import ModelFacts


def rows(seed: int, width: int) -> ExpertRows:
    g = torch.Generator().manual_seed(seed)
    shape = (4, width, 6)
    gate, up = torch.randn(shape, generator=g), torch.randn(shape, generator=g)
    down = torch.randn(4, 6, width, generator=g)
    return ExpertRows(list(gate), list(up), list(down), Activation.SILU)


def bank_of(*layers: ExpertRows | None) -> ExpertBank:
    facts = ModelFacts(
        family="test",
        layers=len(layers),
        hidden=6,
        vocab=9,
        max_context=99,
        state=(None,) * len(layers),
        experts=tuple(layer.count if layer else 0 for layer in layers),
        top_k=tuple(2 if layer else 0 for layer in layers),
        expert_bytes=tuple(3 * layer.gate[0].numel() * 4 if layer else 0 for layer in layers),
        total_bytes=0,
        dtype="float32",
    )
    return ExpertBank(layers, facts)


def test_resident_runs_the_layer_that_was_asked() -> None:
    ops = reference_ops()
    first, third = rows(0, 5), rows(1, 7)
    resident = Resident(bank_of(first, None, third).rows, ops)
    x = torch.randn(3, 6)
    routing = Routing(torch.tensor([[0, 3], [1, 2], [3, 0]], dtype=torch.int32), torch.rand(3, 2))
    assert torch.equal(resident(0, x, routing), ops.experts(x, routing, first))
    assert torch.equal(resident(2, x, routing), ops.experts(x, routing, third))
    assert not torch.equal(resident(0, x, routing), resident(2, x, routing))


def test_the_bank_counts_bytes() -> None:
    bank = bank_of(rows(0, 5), None, rows(1, 7))
    assert [bank.row_bytes(i) for i in range(3)] == [360, 0, 504]
    assert bank.total_bytes == 4 * (360 + 504)
    with pytest.raises(AssertionError, match="layer 1 is dense"):
        bank.rows(1)
