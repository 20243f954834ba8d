"""Rows of any layout: what the link copies into a slot are the bytes of every tensor."""

from __future__ import annotations

import pytest
import torch
from hetero import HIDDEN, Shape, bank_of, device_of, routed, row_bytes, rows_of, x_of

from headrace.experts.layout import ALIGN, layout_of
from headrace.experts.slots import ExpertSlots
from headrace.ops.choose import ops_for
from headrace.ops.table import ExpertRows

LAYOUTS = ["apart", "fused", "interleaved", "interleaved with biases"]
KINDS = ["gate", "up", "down", "gate_bias", "up_bias", "down_bias"]
SPANS = {"apart": 3, "fused": 3, "interleaved": 2, "interleaved with biases": 5}


def tensors(rows: ExpertRows, expert: int) -> dict[str, torch.Tensor]:
    kinds = (rows.gate, rows.up, rows.down, rows.gate_bias, rows.up_bias, rows.down_bias)
    return {name: kind[expert] for name, kind in zip(KINDS, kinds, strict=True) if kind}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", LAYOUTS)
def test_a_slot_holds_every_tensor_of_its_row(how: str, dtype: torch.dtype) -> None:
    shape = Shape(5, 7, dtype=dtype, how=how)
    bank = bank_of(shape)
    rows, layout = bank.rows(0), bank.layouts[0]
    assert layout.row_bytes == row_bytes(rows) == bank.row_bytes(0), "each byte is moved once"
    assert layout.nbytes % ALIGN == 0
    assert layout.nbytes < layout.row_bytes + 64 * SPANS[how] + ALIGN
    step = layout.nbytes + ALIGN  # slots of a bank whose largest row is another layer's
    with device_of() as device:
        memory = device.empty((6 * step,), torch.uint8)
        order, slots = torch.tensor([3, 0, 4]).int(), torch.tensor([1, 5, 0]).int()
        count = torch.tensor([3]).int()
        device.copies.copy_rows(layout.spans, order, slots, count, memory, step)
        device.copies.wait()
        here = layout.rows(memory, 6, step)
        assert here.count == 6
        for expert, slot in zip(order.tolist(), slots.tolist(), strict=True):
            there = tensors(rows, expert)
            found = tensors(here, slot)
            assert found.keys() == there.keys()
            for name, tensor in found.items():
                assert tensor.dtype == there[name].dtype
                assert torch.equal(tensor, there[name]), name
        # And the kernels find them by address.
        x, ops = x_of(2), ops_for(device)
        expected, parts = torch.zeros(2, 1, HIDDEN), torch.zeros(2, 1, HIDDEN)
        ops.experts_parts(x, routed([[3], [4]]).ids_TX, rows, expected)
        ops.experts_parts(x, routed([[1], [0]]).ids_TX, here, parts)
        assert torch.equal(parts, expected)


def test_addresses_are_those_of_the_views() -> None:
    bank = bank_of(Shape(3, 7, how="interleaved with biases"))
    memory = torch.empty(4 * 8192, dtype=torch.uint8)
    here = bank.layouts[0].rows(memory, 4, 8192)
    for spread in (here.gate, here.up, here.down, here.gate_bias, here.up_bias, here.down_bias):
        assert len(spread) == 4
        assert spread.addresses() == [t.data_ptr() for t in spread]  # type: ignore[attr-defined]
        assert [t.data_ptr() for t in spread[1:3]] == spread.addresses()[1:3]  # type: ignore[attr-defined]
        with pytest.raises(IndexError):
            spread[4]


def test_layers_alike_are_told_from_others() -> None:
    bank = bank_of(
        Shape(3, 7),
        None,
        Shape(5, 7),
        Shape(3, 8),
        Shape(3, 7, dtype=torch.bfloat16),
        Shape(3, 7, how="interleaved"),
        Shape(3, 7, how="interleaved with biases"),
    )
    kinds = {layer: layout.kind() for layer, layout in bank.layouts.items()}
    assert kinds[0] == kinds[2]
    assert len(set(kinds.values())) == 5
    assert bank.slot_bytes == max(layout.nbytes for layout in bank.layouts.values())
    assert bank.moe_layers == (0, 2, 3, 4, 5, 6)
    assert bank.total_bytes == sum(
        bank.rows(i).count * row_bytes(bank.rows(i)) for i in bank.moe_layers
    )
    with device_of() as device:
        slots = ExpertSlots(bank, device, capacity=3, staging=2)
        assert slots.rows(0) is slots.rows(2)
        assert slots.rows(0) is not slots.rows(3)
        before = slots.rows(0)
        slots.resize(7)
        assert slots.rows(0) is before, "kernels would describe it again, and keep the old one"
        assert slots.residents() == {}


def differing(which: str) -> ExpertRows:
    """Rows of one layer that do not all look alike."""
    whole, other = (
        rows_of(Shape(4, 7, how=how), at) for at, how in enumerate(["interleaved", "apart"])
    )
    if which == "layout":
        pairs = [(whole.gate[0], whole.up[0]), (other.gate[1], other.up[1])]
        pairs += [(other.gate[2], other.up[2]), (whole.gate[3], whole.up[3])]
    elif which == "order":  # the same span, but gate lies where up does in others
        pairs = [(whole.gate[e], whole.up[e])[:: -1 if e % 2 else 1] for e in range(4)]
    else:
        pairs = [(other.gate[e], other.up[e].to(dtype)) for e, dtype in enumerate(DTYPES)]
    return ExpertRows(*zip(*pairs, strict=True), whole.down, whole.activation)


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.bfloat16]


@pytest.mark.parametrize(("which", "forms"), [("layout", 2), ("order", 2), ("format", 3)])
def test_rows_that_differ_keep_their_forms(which: str, forms: int) -> None:
    rows = differing(which)
    layout = layout_of(rows)
    assert len(layout.forms) == forms
    assert layout.form_of.count(0) < 4
    sizes = [sum(t.nbytes for t in tensors(rows, e).values()) for e in range(4)]
    assert layout.row_bytes == -(-sum(sizes) // 4)
    step = layout.nbytes
    with device_of() as device:
        memory = device.empty((6 * step,), torch.uint8)
        order, slots = torch.tensor([3, 0, 2, 1]).int(), torch.tensor([1, 5, 0, 2]).int()
        device.copies.copy_rows(layout.spans, order, slots, torch.tensor([4]).int(), memory, step)
        device.copies.wait()
        here = layout.rows(memory, 6, step)
        assert here.count == 6 * forms
        x, ops = x_of(2), ops_for(device)
        for expert, slot in zip(order.tolist(), slots.tolist(), strict=True):
            entry = layout.form_of[expert] * 6 + slot
            for name, tensor in tensors(here, entry).items():
                assert torch.equal(tensor, tensors(rows, expert)[name]), name
            assert here.up.addresses()[entry] == here.up[entry].data_ptr()  # type: ignore[attr-defined]
            expected, parts = torch.zeros(2, 1, HIDDEN), torch.zeros(2, 1, HIDDEN)
            ops.experts_parts(x, routed([[expert], [expert]]).ids_TX, rows, expected)
            ops.experts_parts(x, routed([[entry], [entry]]).ids_TX, here, parts)
            assert torch.equal(parts, expected)
        with pytest.raises(IndexError):
            here.gate[6 * forms]
