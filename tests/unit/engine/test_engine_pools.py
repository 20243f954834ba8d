"""What of the caches is in RAM before a sequence has reached it, as the kernel counts it."""

from __future__ import annotations

from mmap import PAGESIZE
from pathlib import Path

import pytest
import torch

from headrace.device.cpu import CpuDevice
from headrace.engine.pools import Pools, Sizes
from headrace.models.state import RecurrentPool
from headrace.planning.facts import KvNeed, RecurrentNeed

MIB = 1 << 20
KV = KvNeed(key=512, value=512)  # 2 KiB a token
STATE = RecurrentNeed(matrix=(4, 32, 64), conv=(64, 4))  # 33 KiB
NEEDS = [*[KV] * 12, *[STATE] * 6]
SMALL, LARGE = Sizes(7000, 200), Sizes(9000, 400)  # 164 MiB of keys and values, 39 of states


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE


@pytest.mark.parametrize("asked", [0, 100_000, 16 * MIB])
def test_a_bounded_part_of_states_is_in_ram_at_once_and_no_keys(asked: int) -> None:
    whole = asked // (6 * 33 * 1024)  # states of all layers
    with CpuDevice(1) as device:
        before = resident()
        pools = Pools(NEEDS, device, SMALL, LARGE, torch.bfloat16, touched=asked)
        most = whole and asked + 12 * MIB  # of a huge page what is left
        assert 0.9 * whole * 6 * 33 * 1024 <= resident() - before + MIB <= most + 2 * MIB
        pools.resize(LARGE, block_tokens=4)
        assert resident() - before <= most + MIB
        for pool in pools.state:
            if isinstance(pool, RecurrentPool):
                pool.matrix[:whole] = 1
        assert resident() - before <= most + MIB, "not the lowest"
