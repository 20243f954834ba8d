"""Experts that do not fit into RAM: how many rows stay there, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import EngineConfig
from headrace.errors import CapacityError
from headrace.planning.facts import KvNeed, ModelFacts
from headrace.planning.machine import Machine
from headrace.planning.resolve import costs_of, equip, resolve
from headrace.planning.tier import slot_bytes_of

MIB, GIB = 1 << 20, 1 << 30


def facts(**over: Any) -> ModelFacts:
    """16 GiB of experts in 2048 rows of 8 MiB, 1 GiB beside them."""
    numbers: dict[str, Any] = {
        "family": "test",
        "layers": 16,
        "hidden": 64,
        "vocab": 1000,
        "max_context": 4096,
        "state": (KvNeed(1024, 1024),) * 16,
        "experts": (128,) * 16,
        "top_k": (8,) * 16,
        "expert_bytes": (8 * MIB,) * 16,
        "total_bytes": 17 * GIB,
        "dtype": "bfloat16",
    }
    return ModelFacts(**(numbers | over))


def machine(free: int, total: int = 32 * GIB) -> Machine:
    return Machine("Water Wheel 9", 8, 4, total, free, ("scalar",))


def test_experts_that_fit_are_not_tiered() -> None:
    plan = resolve(EngineConfig(), machine(24 * GIB), facts())
    assert plan.tier is None
    assert plan.memory.slot_bytes == 0


def test_experts_that_do_not_fit_are_cached() -> None:
    plan = resolve(EngineConfig(), machine(9 * GIB, 10 * GIB), facts())
    assert plan.tier is not None
    assert "17.0 GiB" in plan.tier.placement.reason
    assert "9216 MiB" in plan.tier.placement.reason
    assert plan.context.value == 4096  # context first
    rows, spare = plan.tier.rows.value, plan.tier.spare
    assert spare == 16
    assert (rows, spare) == (plan.memory.expert_slots, plan.memory.staging_slots)
    left = plan.memory.free - plan.memory.used
    assert 0 <= left < plan.memory.slot_bytes
    assert rows == pytest.approx(7 * GIB / slot_bytes_of(facts()), rel=0.05)
    assert any("placement" in line and "disk" in line for line in plan.lines())


def test_as_asked() -> None:
    config = EngineConfig.of(**{"experts.ram": "40 slots", "experts.policy": "lru"})
    plan = resolve(config, machine(24 * GIB), facts())
    assert plan.tier is not None
    assert (plan.tier.rows.value, plan.tier.spare) == (30, 10)
    assert plan.tier.policy.value == "lru"
    whole = resolve(EngineConfig.of(**{"experts.ram": "100%"}), machine(24 * GIB), facts())
    assert whole.tier is not None
    assert whole.tier.rows.value == 2048


def test_what_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"holds 1 experts.*2 experts at least"):
        resolve(EngineConfig.of(**{"experts.ram": "1 slots"}), machine(24 * GIB), facts())
    with pytest.raises(CapacityError, match=r"at most \d+"):
        resolve(EngineConfig.of(**{"experts.ram": "16GiB"}), machine(12 * GIB), facts())
    with pytest.raises(CapacityError, match="no expert needs"):
        resolve(EngineConfig(), machine(GIB), facts())
    keys = {"experts.ram": "25%", "experts.placement": "resident", "emulated.memory": "22GiB"}
    with pytest.raises(CapacityError, match=r"RAM does not hold all experts"):
        resolve(EngineConfig.of(device="emulated", **keys), machine(31 * GIB), facts())


@pytest.mark.parametrize("asked", [None, "25%"])
def test_a_device_over_ram_over_disk(asked: str | None) -> None:
    keys = {"emulated.memory": "4GiB"} | ({} if asked is None else {"experts.ram": asked})
    here = machine((12 if asked is None else 24) * GIB)
    plan = resolve(EngineConfig.of(device="emulated", **keys), here, facts())
    assert plan.experts is not None
    assert plan.tier is not None
    assert plan.experts.prefill.value in ("on demand", "host")  # nothing streams
    assert plan.choices()["placement"].value == plan.experts.placement.value
    held = (plan.tier.rows.value + plan.tier.spare) * plan.tier.slot_bytes
    assert held < here.ram_free - 4 * GIB  # of which the emulated device is made
    if asked is not None:
        assert plan.tier.rows.value + plan.tier.spare == 512
    equipped = equip(EngineConfig.of(device="emulated", **keys), here, facts(), plan.device)

    def seconds(tier: Any, disk: float) -> float:
        there = replace(equipped, disk=disk)
        costs = costs_of(plan.experts, there, facts(), 2, tier=tier)
        assert costs.first_token(1000, 512) > 0
        return costs.decode(1024).total_s

    assert seconds(None, 1e9) < seconds(plan.tier, 1e9) < seconds(plan.tier, 1e8)


def test_a_device_whose_ram_holds_all_has_no_tier() -> None:
    config = EngineConfig.of(device="emulated", **{"emulated.memory": "4GiB"})
    assert resolve(config, machine(30 * GIB), facts()).tier is None


def test_predicted_speed() -> None:
    def speed(rows: str, disk: float) -> float:
        here = replace(machine(24 * GIB), disk=disk)
        plan = resolve(EngineConfig.of(**{"experts.ram": rows}), here, facts())
        costs = costs_of(None, here, facts(), 2, tier=plan.tier)
        assert costs.disk is not None
        assert 0 <= costs.miss_rate < 1
        return costs.tokens_per_s(1024)

    resident = costs_of(None, machine(24 * GIB), facts(), 2).tokens_per_s(1024)
    assert speed("100%", 1e9) == pytest.approx(resident)
    assert speed("20%", 2e8) < speed("50%", 2e8) < speed("80%", 2e8) < resident
    assert speed("50%", 1e8) < speed("50%", 2e8)
    # 128 rows of 8 MiB a step; of these 16 * 8 * rate come from disk and are computed afterwards.
    here = replace(machine(24 * GIB), disk=1e8)
    plan = resolve(EngineConfig.of(**{"experts.ram": "20%"}), here, facts())
    costs = costs_of(None, here, facts(), 2, tier=plan.tier)
    read_s = 128 * costs.miss_rate * 8 * MIB / 1e8
    step = costs.decode(1024)
    late_s = 128 * costs.miss_rate * 8 * MIB / costs.speeds.kernels
    assert step.experts_s + step.misses_s == pytest.approx(read_s + late_s)
    assert costs.prefill(512, 0, "on demand") > 16 * 120 * 8 * MIB * (1 - costs.share) / 1e8


@given(st.integers(GIB, 17 * GIB), st.sampled_from([None, "2 slots", "10%", "4GiB", "99%"]))
def test_never_more_than_there_is(free: int, asked: str | None) -> None:
    config = EngineConfig.of(**({} if asked is None else {"experts.ram": asked}))
    try:
        plan = resolve(config, machine(free), facts())
    except CapacityError:
        return
    assert plan.memory.used <= free
    assert plan.tier is not None
    assert 1 <= plan.tier.rows.value <= 2048
    assert plan.tier.spare >= 1
