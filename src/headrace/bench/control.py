"""What control costs: planning a layer with few and with many misses, resizing a full cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from headrace.bench.layers import DEVICE_BYTES
from headrace.device.emulated import EmulatedDevice, Emulation
from headrace.experts.bank import ExpertBank
from headrace.experts.slots import ExpertSlots
from headrace.ops.choose import ops_for
from headrace.ops.table import Cache, CacheLayer, Planned

ROWS, EXPERTS, SLOTS = 48 * 128, 128, 1600  # of a large model; planning looks at no weights
IDS = 64  # eight sequences, top-8


def planning(repeats: int = 200) -> dict[str, float]:
    """Microseconds of one layer's plan with 1 and with 64 misses among 64 active experts."""
    with EmulatedDevice(Emulation(memory=64 << 20)) as device:
        ops = ops_for(device)
        layer, quota_Q = CacheLayer(0, EXPERTS), torch.tensor([0, 0], dtype=torch.int32)
        ids_TX = torch.arange(IDS, dtype=torch.int32).view(8, 8)

        def cost(misses: int) -> float:
            cache = _full(IDS - misses)
            out = _planned()
            seconds = []
            for _ in range(repeats):
                began = time.perf_counter()
                ops.plan(ids_TX, layer, cache, quota_Q, out)
                seconds.append(time.perf_counter() - began)
            assert out.counts_4.tolist() == [IDS, IDS - misses, 0, misses]
            return 1e6 * statistics.median(seconds)

        few, many = zip(*[(cost(1), cost(IDS)) for _ in range(5)], strict=True)
    return {"us_with_1_miss": statistics.median(few), "us_with_64": statistics.median(many)}


def _full(here: int) -> Cache:
    """All slots taken; of the first layer, `here` of the experts that are asked for."""
    rows = torch.tensor([*range(here), *range(ROWS - SLOTS + here, ROWS)], dtype=torch.int32)
    slot_of_R = torch.full((ROWS,), -1, dtype=torch.int32)
    slot_of_R[rows.long()] = torch.arange(SLOTS, dtype=torch.int32)
    values = torch.randint(0, 1 << 40, (ROWS,))
    sums = torch.zeros(2, ROWS, dtype=torch.int64)
    return Cache(slot_of_R, rows, sums, values, torch.zeros(1, dtype=torch.int64))


def _planned() -> Planned:
    def numbers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32)

    return Planned(numbers(8, 8), numbers(8, 8), numbers(EXPERTS), numbers(EXPERTS), numbers(4))


def resized_slots(bank: ExpertBank) -> int:
    """As many as `resizing` moves: a round number, less where there are not so many experts, or
    no memory for them.
    """
    fit = DEVICE_BYTES // 2 // bank.slot_bytes
    return max(1, min(128, sum(bank.facts.experts), fit))


def resizing(bank: ExpertBank, slots: int) -> dict[str, float]:
    """Milliseconds to halve a full cache of so many slots, and to double it again."""
    with EmulatedDevice(Emulation(memory=DEVICE_BYTES)) as device:
        cache = ExpertSlots(bank, device, capacity=slots, staging=0)
        cache.cache.row_of_S.copy_(torch.arange(slots))
        cache.cache.slot_of_R[:slots] = torch.arange(slots, dtype=torch.int32)
        cache.cache.value_R.copy_(torch.randperm(cache.cache.value_R.numel()))
        halved = _timed(lambda: cache.resize(slots // 2))
        doubled = _timed(lambda: cache.resize(slots))
        cache.close()
    return {"mb": slots * bank.slot_bytes / 1e6, "halved_ms": halved, "doubled_ms": doubled}


def _timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - began)
