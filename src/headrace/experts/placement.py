"""Ways to run a MoE layer; each fits `models.state.Experts`."""

from __future__ import annotations

from torch import Tensor

from headrace.experts.bank import ExpertBank
from headrace.ops.table import Ops, Routing


class Resident:
    """All experts are where the device computes: nothing is ever moved."""

    def __init__(self, bank: ExpertBank, ops: Ops) -> None:
        self._bank, self._run = bank, ops.experts

    def __call__(self, layer: int, x_TD: Tensor, routing: Routing) -> Tensor:
        return self._run(x_TD, routing, self._bank.rows(layer))
