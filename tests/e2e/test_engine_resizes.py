"""Resizes that cannot be done leave an engine whose budget is what it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engines import built, load

from headrace.device.emulated import EmulatedDevice
from headrace.engine.engine import Engine
from headrace.engine.request import Sampling
from headrace.errors import CapacityError
from headrace.experts.placement import Hybrid

GREEDY = Sampling(temperature=0, max_tokens=24, ignore_eos=True)
PROMPT = [3, 14, 15, 92, 65]
FAMILIES = ["mixtral", "qwen3_5_moe", "deepseek_v3"]  # keys and values, states, latents


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(request.param, tmp_path_factory)


@pytest.fixture
def engine(folder: Path):
    hybrid = {"experts.placement": "hybrid", "experts.fill": "all", "experts.cache": "60%"}
    memory = {"emulated.memory": "64MiB", "memory.kv_bytes": "256KiB"}
    made = load(folder, device="emulated", context=128, **memory, **hybrid)
    yield made
    made.close()


@pytest.fixture(scope="module")
def truth(folder: Path) -> list[int]:
    engine = load(folder)
    found = engine.generate(PROMPT, GREEDY)
    engine.close()
    return found


def test_growth_without_memory_is_told_and_nothing_is_lost(
    engine: Engine, truth: list[int]
) -> None:
    assert engine.generate(PROMPT, GREEDY) == truth
    live = engine.live
    device, placement = live._built.device, live._built.placement
    assert isinstance(device, EmulatedDevice)
    assert isinstance(placement, Hybrid)
    before, total = live.budget, device.memory.total
    device.memory.total = device.memory.used  # others have taken what was free
    with pytest.raises(CapacityError, match="bytes were asked"):
        live.ask({"kv_tokens": 2 * before.kv_tokens})
    assert live.budget == before
    # Fewer experts would not make up for it, and they come back.
    with pytest.raises(CapacityError, match="bytes were asked"):
        live.resize(
            replace(before, expert_slots=before.expert_slots - 1, kv_blocks=2 * before.kv_blocks)
        )
    assert live.budget == before
    assert placement.slots.capacity == before.expert_slots
    assert engine.status()["kv_blocks_total"] == before.kv_blocks
    placement.slots.check()
    engine.check()
    device.memory.total = total
    assert engine.generate(PROMPT, GREEDY) == truth
    done = live.ask({"kv_tokens": 2 * before.kv_tokens})
    assert done["after"]["kv_tokens"] == 2 * before.kv_tokens
    assert engine.generate(PROMPT, GREEDY) == truth


def test_the_cpu_alone_resizes_its_caches(folder: Path, truth: list[int]) -> None:
    engine = load(folder, context=128)
    least, most = engine.status()["live"]["limits"]["kv_tokens"]
    states = engine.status()["live"]["limits"]["state_slots"]
    for tokens, slots in ((least, states[0]), (most, states[1])):
        done = engine.live.ask({"kv_tokens": tokens, "state_slots": slots})
        assert (done["after"]["kv_tokens"], done["after"]["state_slots"]) == (tokens, slots)
        assert engine.status()["kv_blocks_total"] == tokens // 4
        assert engine.status()["state_slots_total"] == slots
        assert engine.generate(PROMPT, GREEDY) == truth
    with pytest.raises(CapacityError, match="no device"):
        engine.live.ask({"experts": "50%"})
    engine.close()
