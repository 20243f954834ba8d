"""Hybrid against the op over the bank: the bits of every layer of every step, whatever happened
before: other batches, prompts, resizes, steps that failed half-way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hetero import Shape, bank_of, device_of, hybrid_of, routed, x_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headrace.device.emulated import EmulatedDevice
from headrace.errors import CapacityError
from headrace.experts.placement import Hybrid, Prefill, Resident, on_device
from headrace.ops.choose import ops_for
from headrace.ops.table import Ops

BANK = bank_of(
    Shape(6, 7, how="interleaved with biases"), None, Shape(4, 12, top_k=1), Shape(5, 7, top_k=3)
)
MOST = 6


def step(
    hybrid: Hybrid, ops: Ops, seed: int, tokens: int, *, prefill: bool, until: int = 99
) -> None:
    """One step over all layers, or one that fails before layer `until`."""
    g = torch.Generator().manual_seed(seed)
    hybrid.begin(tokens, prefill=prefill)
    for layer in BANK.moe_layers:
        if layer >= until:
            return
        count, top_k = BANK.rows(layer).count, BANK.facts.top_k[layer]
        ids = [torch.randperm(count, generator=g)[:top_k].tolist() for _ in range(tokens)]
        routing, x = routed(ids, seed), x_of(tokens, seed)
        assert torch.equal(hybrid(layer, x, routing), ops.experts(x, routing, BANK.rows(layer)))
    hybrid.finish()


class Failing:
    """An op that raises when it is told to, after or instead of its work."""

    def __init__(self, run: Any) -> None:
        self.run, self.mode = run, ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mode, self.mode = self.mode, ""
        if mode == "instead":
            raise KeyboardInterrupt
        result = self.run(*args, **kwargs)
        if mode == "after":
            raise KeyboardInterrupt
        return result


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["decode", "decode", "prefill", "resize", "fail", "plan", "parts", "copy"]),
        st.integers(0, 999),
        st.integers(1, MOST),
    ),
    max_size=14,
)


@settings(max_examples=14, deadline=None)
@given(STEPS, st.sampled_from(["all", "paper", 0.5]), st.sampled_from([0, 3, 12]), st.booleans())
def test_the_bits_after_whatever_happened(
    steps: list[tuple[str, int, int]], fill: str | float, staging: int, virtual: bool
) -> None:
    with device_of(virtual=virtual, poison=True) as device:
        ops = ops_for(device)
        plan, parts = Failing(ops.plan), Failing(ops.experts_parts)
        copy = Failing(device.copies.copy_rows)
        device.copies.copy_rows = copy  # type: ignore[method-assign]
        hybrid = hybrid_of(
            BANK,
            device,
            capacity=5,
            staging=staging,
            fill=fill,
            most_tokens=MOST,
            ops=replace(ops, plan=plan, experts_parts=parts),
        )
        broken = {"plan": plan, "parts": parts, "copy": copy}
        for what, seed, tokens in steps:
            if what == "resize":
                hybrid.resize(1 + seed % 15)
            elif what in broken:
                broken[what].mode = "after" if seed % 2 else "instead"
                with pytest.raises(KeyboardInterrupt):
                    step(hybrid, ops, seed, tokens, prefill=seed % 3 == 0)
            elif what == "fail":
                step(hybrid, ops, seed, tokens, prefill=seed % 2 == 0, until=3)
            else:
                step(hybrid, ops, seed, tokens, prefill=what == "prefill")
            hybrid.slots.check()
        step(hybrid, ops, 1, MOST, prefill=False)
        step(hybrid, ops, 2, MOST, prefill=True)


def test_rows_that_were_never_copied_are_not_believed_in() -> None:
    """The plan has admitted them; the copy was never made."""
    with device_of() as device:
        ops = ops_for(device)
        copy = Failing(device.copies.copy_rows)
        device.copies.copy_rows = copy  # type: ignore[method-assign]
        hybrid = hybrid_of(BANK, device, capacity=9, staging=0)
        copy.mode = "instead"
        with pytest.raises(KeyboardInterrupt):
            step(hybrid, ops, 5, 2, prefill=False)
        assert hybrid.slots.residents()
        step(hybrid, ops, 5, 2, prefill=False)
        told = hybrid.status()
        assert told["decode_steps"] == 1, "nobody learns from a step that failed"
        assert told["hits"] == 0


def test_what_the_host_reads_lives_until_it_is_done() -> None:
    """A step fails while the host computes: it is waited for, as its inputs are freed next."""
    with device_of() as device:
        ops, order = ops_for(device), []
        settle = device.settle
        device.settle = lambda: (order.append("settled"), settle())[0]  # type: ignore[method-assign,assign]

        def fails(*_: Tensor) -> None:
            order.append("failed")
            raise RuntimeError("a kernel failed")

        hybrid = hybrid_of(
            BANK, device, capacity=0, staging=0, ops=replace(ops, experts_parts=fails)
        )
        hybrid.begin(1, prefill=False)
        with pytest.raises(RuntimeError, match="a kernel failed"):
            hybrid(0, x_of(1), routed([[1, 2]]))
        assert order == ["settled", "failed", "settled"]  # the first: the slots were made
        assert [n for n, _ in device.host_pool.observations()] == [2]


def test_a_step_of_one_token_after_another() -> None:
    with device_of() as device:
        ops = ops_for(device)
        hybrid = hybrid_of(BANK, device, capacity=1, staging=0, most_tokens=1)
        for seed in range(12):
            step(hybrid, ops, seed, 1, prefill=seed == 5)
        told = hybrid.status()
        assert told["uses"] == 11 * (2 + 1 + 3)
        assert told["hits"] + told["fills"] + told["host"] == told["uses"]


def test_everything_on_the_device() -> None:
    with device_of() as device:
        ops = ops_for(device)
        resident = Resident(on_device(BANK, device), ops)
        for layer in BANK.moe_layers:
            ids = [[1, 3, 0][: BANK.facts.top_k[layer]]]
            routing, x = routed(ids), x_of(1)
            found = resident(layer, x, routing)
            assert torch.equal(found, ops.experts(x, routing, BANK.rows(layer)))
    with device_of(16 << 10) as small, pytest.raises(CapacityError):
        on_device(BANK, small)


def test_a_budget_too_small_for_the_buffers_gives_its_slots_back() -> None:
    with device_of(40 << 10) as device, pytest.raises(CapacityError):
        hybrid_of(BANK, device, capacity=2, staging=0, most_tokens=400, how=Prefill.ON_DEMAND)
    assert isinstance(device, EmulatedDevice)
    assert device.memory.used == 0
