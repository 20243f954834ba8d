"""Measures the bandwidths that a plan rests on: a model's own rows, on its own device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch

from headrace.device.emulated import EmulatedDevice
from headrace.engine.build import start_device
from headrace.engine.opening import Opening
from headrace.errors import ConfigError
from headrace.experts.bank import ExpertBank
from headrace.experts.measure import measure
from headrace.models.load import load_model
from headrace.ops.choose import ops_for
from headrace.planning.machine import Machine
from headrace.planning.profile import BandwidthProfile, layer_kind, layer_kinds
from headrace.planning.resolve import profile_mark


def measure_profile(
    opening: Opening,
    machine: Machine,
    *,
    reading: Callable[[int, int], None],
    progress: Callable[[str], None],
) -> BandwidthProfile:
    """A row for each kind of layer. `machine`: as probed; `reading` hears (bytes read, in all).

    Raises ConfigError where there is no link to measure, CheckpointError, CapacityError or
    DeviceError; nothing is left running.
    """
    facts = opening.source.facts
    with ExitStack() as undo:
        undo.callback(opening.reading.cancel)
        device = start_device(opening)
        undo.callback(device.close)
        if not isinstance(device, EmulatedDevice) or device.clock is not None:
            raise ConfigError(
                f"the device {device.name} has no link whose speed could be measured",
                expected="device = emulated, emulated.clock = real",
            )
        torch.set_num_threads(1)
        ops = ops_for(device)
        model = load_model(opening.source, ops, reading=opening.reading, progress=reading)
        bank = ExpertBank(model.expert_rows, facts)
        rows = {}
        for kind in layer_kinds(facts):
            layers = [i for i in bank.moe_layers if layer_kind(facts, i) == kind]
            rows[kind] = measure(bank, device, layers, progress)
    return BandwidthProfile(profile_mark(opening.config, machine, facts), rows)
