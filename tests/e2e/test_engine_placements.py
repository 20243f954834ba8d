"""Experts in every placement give the bits of the CPU alone, whatever the cache holds, also while
it is resized.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import answers, built, in_memory, load, run

from headrace.engine.engine import Engine
from headrace.engine.request import Request, Sampling
from headrace.errors import CapacityError, DeviceError, RequestError
from headrace.experts.placement import Hybrid

FAMILIES = [
    "mixtral",
    "gpt_oss",
    "olmoe",
    "qwen3_moe-dense-tied-linear",
    "qwen3_5_moe",
    "nemotron_h",
    "deepseek_v3",
    "gemma4",
    "llama4",
]
PLACEMENTS: dict[str, dict[str, object]] = {
    "resident": {"placement": "resident"},
    "host": {"placement": "host"},
    "all, one row": {"placement": "hybrid", "fill": "all", "cache": "1 slots"},
    "all": {"placement": "hybrid", "fill": "all", "cache": "25%"},
    "paper": {"placement": "hybrid", "fill": "paper", "cache": "40%"},
    "balanced": {"placement": "hybrid", "fill": "balanced", "cache": "50%"},
    "half, everything": {"placement": "hybrid", "fill": 0.5, "cache": "100%"},
    "staged copies": {"placement": "hybrid", "fill": "all", "emulated.pinning": "refused"},
    "auto, lru": {"placement": "hybrid", "cache": "30%", "policy": "lru"},
}
VIRTUAL = {"emulated.clock": "virtual", "emulated.machine": "rtx4060-laptop"}
PROMPTS = [tuple(3 + (i * 37 + j * j * 11) % 120 for j in range(3 + 9 * i)) for i in range(8)]
REQUESTS = [Request(p, Sampling(temperature=0, max_tokens=16, ignore_eos=True)) for p in PROMPTS]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(request.param, tmp_path_factory)


def emulated(folder: Path, **keys: object) -> Engine:
    experts = {f"experts.{name}": value for name, value in keys.items() if "." not in name}
    others = {name: value for name, value in keys.items() if "." in name}
    memory = {"emulated.memory": "64MiB", **others}
    return load(folder, device="emulated", **memory, **experts)


def placement_of(engine: Engine) -> Hybrid:
    placement = engine.live._built.placement
    assert isinstance(placement, Hybrid)
    return placement


@pytest.fixture(scope="module")
def truth(folder: Path) -> Any:
    """(logits of the longest prompt, answers of all requests) of the CPU alone."""
    return in_memory(folder, REQUESTS)


@pytest.mark.parametrize("clock", ["real", "virtual"])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_the_bits_do_not_depend_on_the_placement(
    folder: Path, truth: Any, name: str, clock: str
) -> None:
    logits, tokens = truth
    engine = emulated(folder, **PLACEMENTS[name], **(VIRTUAL if clock == "virtual" else {}))
    assert np.array_equal(engine.score(PROMPTS[-1]), logits)
    for count in (1, 3, 8):
        assert answers(engine, REQUESTS[-count:]) == tokens[-count:]
    assert np.array_equal(engine.score(PROMPTS[-1]), logits)
    if name not in ("resident", "host"):
        placement = placement_of(engine)
        placement.slots.check()
        told = placement.status()
        assert told["hits"] + told["fills"] + told["host"] == told["uses"] > 0
        assert told["fills"] > 0 or clock == "virtual"  # a declared machine may not want any
    engine.close()


def test_resizing_at_random_steps_changes_no_token(folder: Path, truth: Any) -> None:
    _, tokens = truth
    engine = emulated(folder, placement="hybrid", fill="all", cache="60%")
    rows = engine.live._elastic.limits.rows
    chance = random.Random(7)
    resized = 0
    for _ in run(engine, REQUESTS):
        if chance.random() < 0.5:
            budget = engine.live.budget
            blocks = budget.kv_blocks
            limits = engine.live._elastic.limits
            wanted = replace(
                budget,
                expert_slots=chance.choice([1, rows // 3, rows // 2, rows]),
                kv_blocks=limits.kv_blocks.clamp(chance.choice([blocks // 2, blocks * 2, 1])),
                state_slots=limits.state_slots.clamp(chance.choice([1, 4, 16])),
            )
            done = engine.resize(wanted)
            assert done.after.expert_slots == wanted.expert_slots
            assert engine.status()["kv_blocks_total"] == wanted.kv_blocks
            placement_of(engine).slots.check()
            resized += 1
    assert resized > 5
    found = {id: list(tokens) for id, tokens in _.items()}
    assert list(found.values()) == tokens
    engine.close()


def test_a_prompt_leaves_the_resident_set_as_it_was(folder: Path) -> None:
    """Streamed whole or a few tokens on demand."""
    engine = emulated(folder, placement="hybrid", fill="all", cache="30%", **VIRTUAL)
    answers(engine, REQUESTS[:2])
    before = placement_of(engine).slots.residents()
    assert before
    engine.score(PROMPTS[-1])
    engine.score(PROMPTS[0])
    assert placement_of(engine).slots.residents() == before
    engine.close()


def test_shrinking_keeps_the_most_valuable_rows(folder: Path) -> None:
    engine = emulated(folder, placement="hybrid", fill="all", cache="60%")
    answers(engine, REQUESTS[:3])
    slots = placement_of(engine).slots
    values = slots.cache.value_R.clone()
    base = slots._base
    before = {base[key.layer] + key.expert for key in slots.residents()}
    keep = len(before) // 2
    done = engine.resize(replace(engine.live.budget, expert_slots=keep))
    after = {base[key.layer] + key.expert for key in slots.residents()}
    best = sorted(before, key=lambda row: (int(values[row]), row))[-keep:]
    assert after == set(best)
    assert done.dropped_rows == len(before) - keep
    # What is resident is the bank's: every slot holds the bytes of its row.
    bank = placement_of(engine)._bank
    for (layer, expert), slot in slots.residents().items():
        assert np.array_equal(
            slots.rows(layer).gate[slot].numpy(), bank.rows(layer).gate[expert].numpy()
        )
    engine.close()


def test_memory_that_others_take_is_made_up_for_by_experts(folder: Path, truth: Any) -> None:
    _, tokens = truth
    engine = emulated(folder, placement="hybrid", fill="all", cache="100%")
    slots = placement_of(engine).slots
    device = engine.live._built.device
    before = slots.capacity
    free = device.memory.free  # type: ignore[union-attr]
    device.memory.total -= free + slots.slot_bytes * (before // 2)  # type: ignore[union-attr]
    assert answers(engine, REQUESTS) == tokens
    assert slots.capacity < before
    assert device.memory.used <= device.memory.total  # type: ignore[union-attr]
    engine.close()


def test_nonsense_is_refused_and_the_engine_goes_on(folder: Path, truth: Any) -> None:
    _, tokens = truth
    engine = emulated(folder, placement="hybrid", fill="all", cache="40%")
    live = engine.live
    for body, error in [
        ({}, RequestError),
        ({"experts": "much"}, RequestError),
        ({"experts": "0 slots"}, RequestError),
        ({"kv_tokens": 1}, CapacityError),
        ({"kv_tokens": -1}, RequestError),
        ({"device_bytes": 1000}, CapacityError),
        ({"vram": 3}, RequestError),
    ]:
        with pytest.raises(error, match="expected"):
            live.parse(body)
    assert answers(engine, REQUESTS[:2]) == tokens[:2]
    engine.close()
    with pytest.raises(DeviceError, match="closed"):
        _ = engine.live
