"""From an opened model to a runner over its weights, experts and caches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from headrace.device.clock import VirtualClock
from headrace.device.cpu import CpuDevice
from headrace.device.emulated import EmulatedDevice, Emulation
from headrace.device.memory import HostMemory
from headrace.engine.crossing import Crossing
from headrace.engine.elastic import Tiers
from headrace.engine.forward import Forward
from headrace.engine.graphs import Graphs
from headrace.engine.opening import Opening
from headrace.engine.placing import place_experts
from headrace.engine.pools import Pools, host_sizes, sizes_of
from headrace.engine.recorder import Recorder
from headrace.engine.runner import Runner
from headrace.experts.arriving import Arriving
from headrace.experts.disk import FromDisk
from headrace.experts.placement import Hybrid, Placement
from headrace.models.load import load_model
from headrace.ops.choose import ops_for
from headrace.planning.budget import useful_blocks
from headrace.planning.elastic import HOST_GROWTH
from headrace.planning.trace import TraceModel

AnyDevice = CpuDevice | EmulatedDevice
# Of recurrent states. The first write to a huge page costs up to a millisecond, and a small model's
# turn that saves states met eight of them; beside a turn of a larger one that is little.
TOUCHED = 64 << 20


@dataclass(frozen=True, slots=True)
class Built:
    """A runner and what stands behind it."""

    runner: Runner
    tiers: Tiers
    placement: Placement
    graphs: Graphs
    recorder: Recorder
    device: AnyDevice
    opening: Opening

    def close(self) -> None:
        """Stops what reads and computes. Calling it twice is harmless."""
        if isinstance(self.placement, FromDisk | Arriving):
            self.placement.close()
        elif isinstance(self.placement, Hybrid) and self.placement.shelf is not None:
            self.placement.shelf.close()
        self.device.close()


def start_device(opening: Opening) -> AnyDevice:
    """The planned device. Raises DeviceError; then nothing is left reading."""
    with ExitStack() as undo:
        undo.callback(opening.reading.cancel)
        device = _device(opening)
        undo.pop_all()
    return device


def _device(opening: Opening) -> AnyDevice:
    plan = opening.plan
    if plan.experts is None:
        return CpuDevice(plan.threads.value, exact=plan.exact)
    experts, asked, machine = plan.experts, opening.config.emulated, opening.machine
    virtual = asked.clock == "virtual"
    clock = None
    if virtual:
        assert machine.device is not None
        (row, *_) = experts.rows.values()
        clock = VirtualClock(row, kernels=machine.device.kernels, flops=machine.device.flops)
    return EmulatedDevice(
        Emulation(
            memory=plan.memory.free,
            link=asked.link or 0.0,
            device_threads=experts.device_threads.value,
            host_threads=experts.host_threads.value,
            exact=plan.exact,
            poison=virtual,
            staged=experts.copies.value == "staged",
        ),
        clock,
    )


def build(
    opening: Opening, device: AnyDevice, progress: Callable[[int, int], None] | None = None
) -> Built:
    """Waits for the weights. Raises CheckpointError; then the device is closed, too."""
    with ExitStack() as undo:
        undo.callback(opening.reading.cancel)
        undo.callback(device.close)
        built = _build(opening, device, progress)
        undo.pop_all()
    return built


def _build(
    opening: Opening, device: AnyDevice, progress: Callable[[int, int], None] | None
) -> Built:
    limits = opening.limits
    # The pool owns the cores; torch threads that spin beside it would take them away.
    torch.set_num_threads(1)
    ops = ops_for(device)
    model = load_model(
        opening.source, ops, reading=opening.reading, progress=progress, rows=opening.rows
    )
    if isinstance(device, EmulatedDevice):
        # The dense weights stay where they were read: only the budget moves.
        device.memory.take(model.facts.total_bytes - model.facts.experts_bytes)
    pools, host = _pools(opening, device), _host_pools(opening)
    crossed = device.crossed if isinstance(device, EmulatedDevice) else None
    crossing = Crossing(pools, limits.block_tokens, host, crossed)
    placement = place_experts(opening, model, device, ops)
    graphs = Graphs(model.transformer, placement, device, ready=_ready(placement))
    recorder = Recorder(TraceModel.of(model.facts))
    runner = Runner(
        Forward(placement, graphs, recorder),
        pools,
        step_tokens=limits.step_tokens,
        sequences=limits.max_sequences,
        block_tokens=limits.block_tokens,
        sequence_blocks=-(-limits.context // limits.block_tokens),
        windows=[window.tokens for window in limits.windows],
        crossing=crossing,
    )
    tiers = Tiers(pools, host, crossing)
    return Built(runner, tiers, placement, graphs, recorder, device, opening)


def _host_pools(opening: Opening) -> Pools | None:
    """For what the device's prefix cache parts with; pages that nothing reached cost nothing."""
    limits = opening.limits
    if not limits.host_blocks and not limits.host_states:
        return None
    blocks, states = limits.host_blocks, limits.host_states
    most = host_sizes(limits, HOST_GROWTH * blocks, HOST_GROWTH * states)
    sizes = host_sizes(limits, blocks, states)
    return Pools(opening.facts.state, HostMemory(), sizes, most, _kv_dtype(opening))


def _kv_dtype(opening: Opening) -> torch.dtype:
    return torch.float32 if opening.plan.exact else torch.bfloat16


def _pools(opening: Opening, device: AnyDevice) -> Pools:
    """As planned; they may grow until every sequence has the full context."""
    limits = opening.limits
    most = max(limits.blocks, useful_blocks(opening.plan.need))
    states = max(limits.state_slots, min(1, limits.state_slots) * opening.plan.need.most_states)
    return Pools(
        opening.facts.state,
        device,
        sizes_of(limits, limits.blocks, limits.state_slots),
        sizes_of(limits, most, states),
        _kv_dtype(opening),
        touched=TOUCHED,
    )


def _ready(placement: Placement) -> Callable[[], bool]:
    """Whether experts lie where they will stay."""
    if isinstance(placement, Arriving):
        return lambda: placement.whole
    over_disk = isinstance(placement, Hybrid) and placement.shelf is not None
    return lambda: not over_disk
