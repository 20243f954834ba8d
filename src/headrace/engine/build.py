"""From an opened model to a runner over its weights, experts and caches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch

from headrace.device.cpu import CpuDevice
from headrace.engine.graphs import Graphs
from headrace.engine.opening import Opening
from headrace.engine.pools import make_state
from headrace.engine.runner import Runner
from headrace.experts.bank import ExpertBank
from headrace.experts.placement import Resident
from headrace.models.load import load_model
from headrace.ops.choose import ops_for


def start_device(opening: Opening) -> CpuDevice:
    """The planned device. Raises DeviceError; then nothing is left reading."""
    with ExitStack() as undo:
        undo.callback(opening.reading.cancel)
        device = CpuDevice(opening.plan.threads.value, exact=opening.plan.exact)
        undo.pop_all()
    return device


def build_runner(
    opening: Opening, device: CpuDevice, progress: Callable[[int, int], None] | None = None
) -> Runner:
    """Waits for the weights. Raises CheckpointError; then the device is closed, too."""
    with ExitStack() as undo:
        undo.callback(opening.reading.cancel)
        undo.callback(device.close)
        runner = _runner(opening, device, progress)
        undo.pop_all()
    return runner


def _runner(
    opening: Opening, device: CpuDevice, progress: Callable[[int, int], None] | None
) -> Runner:
    limits = opening.limits
    # The pool owns the cores; torch threads that spin beside it would take them away.
    torch.set_num_threads(1)
    ops = ops_for(device)
    model = load_model(opening.source, ops, reading=opening.reading, progress=progress)
    experts = Resident(ExpertBank(model.expert_rows, model.facts), ops)
    graphs = Graphs(model.transformer, experts, device)
    state = make_state(
        model.facts.state,
        device,
        kv_slots=(limits.first_block + limits.blocks) * limits.block_tokens,
        state_slots=limits.state_slots,
        kv_dtype=torch.float32 if opening.plan.exact else torch.bfloat16,
    )
    return Runner(
        graphs.forward,
        state,
        step_tokens=limits.step_tokens,
        sequences=limits.max_sequences,
        block_tokens=limits.block_tokens,
        sequence_blocks=-(-limits.context // limits.block_tokens),
    )
