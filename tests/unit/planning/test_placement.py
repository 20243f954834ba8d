"""The plan of a device with experts on two sides: what goes where, why, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import EngineConfig
from headrace.errors import CapacityError, ConfigError, HeadraceError
from headrace.planning.facts import KvNeed, ModelFacts
from headrace.planning.machine import Machine
from headrace.planning.placement import ExpertsPlan
from headrace.planning.profile import (
    BandwidthProfile,
    Found,
    ProfileRow,
    find_profile,
    fingerprint,
    layer_kinds,
    profile_path,
)
from headrace.planning.resolve import ExecutionPlan, resolve

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
MACHINE = Machine("Water Wheel 9", 8, 4, 32 * GIB, 24 * GIB, ("scalar",))


def facts(**over: Any) -> ModelFacts:
    """4 MoE layers of 32 experts of 1 MiB (128 rows), 256 MiB beside them; 4 KiB KV a token."""
    numbers: dict[str, Any] = {
        "family": "test",
        "layers": 5,
        "hidden": 64,
        "vocab": 1000,
        "max_context": 4096,
        "state": (KvNeed(256, 256),) * 4 + (None,),
        "experts": (0, 32, 32, 32, 32),
        "top_k": (0, 4, 4, 4, 4),
        "expert_bytes": (0, MIB, MIB, MIB, MIB),
        "total_bytes": 384 * MIB,
        "dtype": "bfloat16",
    }
    return ModelFacts(**(numbers | over))


def plan(model: ModelFacts | None = None, found: Found | None = None, **keys: Any) -> ExecutionPlan:
    config = EngineConfig.of(**({"device": "emulated"} | keys))
    model = facts() if model is None else model
    return (
        resolve(config, MACHINE, model) if found is None else resolve(config, MACHINE, model, found)
    )


def experts(
    model: ModelFacts | None = None, found: Found | None = None, **keys: Any
) -> ExpertsPlan:
    made = plan(model, found, **keys).experts
    assert made is not None
    return made


HYBRID = {"experts.placement": "hybrid"}


def test_a_model_that_fits_is_resident() -> None:
    made = experts()
    assert (made.placement.value, made.slots.value, made.staging.value) == ("resident", 128, 0)
    assert made.fill.value == "none"
    assert made.prefill.value == "in place"


def test_the_cache_as_asked() -> None:
    sizes = {"25%": 32, "1 slot": 1, "7": 7, "10MiB": 10, "100%": 128, "5000 slots": 128}
    for size, slots in sizes.items():
        made = plan(**HYBRID, **{"experts.cache": size})
        assert made.experts is not None
        assert made.experts.placement.value == "hybrid"
        assert made.experts.slots.value == made.memory.expert_slots == slots
        assert made.experts.staging.value == made.memory.staging_slots == 64
        assert made.memory.slot_bytes == MIB


@pytest.mark.parametrize("size", ["1KiB", "300MiB"])
def test_a_cache_that_cannot_be(size: str) -> None:
    # 256 MiB beside the experts, 400 MiB in all: 16th reserve, workspace, a context of 16 MiB
    with pytest.raises(CapacityError, match=r"1 to \d+ slots"):
        plan(**HYBRID, **{"experts.cache": size, "emulated.memory": "400MiB"})


def test_heads_that_share_latents_take_workspace() -> None:
    # Of a token: 16 heads' queries of 48 channels and results of 32, beside all else.
    latent = KvNeed(48, 0, latent=32, work=2 * 16 * (48 + 32))
    given = {"emulated.memory": "400MiB", "context": 2048}
    model = facts(state=(latent,) * 4 + (None,))
    more = plan(model, **given).memory.workspace - plan(**given).memory.workspace
    assert more == 4 * 512 * 16 * (48 + 32)


def test_the_memory_table_adds_up() -> None:
    made = plan(**{"emulated.memory": "400MiB", "context": 2048})
    memory, seats = made.memory, made.experts
    assert seats is not None
    assert seats.placement.value == "hybrid"
    assert memory.weights == 256 * MIB
    assert memory.reserve == 25 * MIB
    # 512 tokens a step, 64 wide, 8 + 2 * 4 values each, and 16 rows of logits
    assert memory.workspace == 4 * (512 * 64 * 16 + 16 * 1000)
    assert memory.kv_bytes >= 2048 * 4 * KIB
    assert memory.used <= 400 * MIB
    left = 400 * MIB - 281 * MIB - memory.workspace - 8 * MIB
    # not even half of it holds two layers of 32, so 27 slots wait for prompts on demand
    assert seats.staging.value == left // MIB // 2 // 2
    assert seats.slots.value <= left // MIB - seats.staging.value
    # what is not slots is keys and values, up to less than a slot or all that 16 sequences need
    assert 400 * MIB - memory.used < MIB or memory.kv_tokens == 16 * 2048
    assert seats.prefill.value == "on demand"
    assert "64 slots" in seats.prefill.reason


def test_the_ladder_down_to_the_host() -> None:
    tight = {"emulated.memory": "290MiB", "context": 16}
    made = experts(**tight)
    assert made.placement.value == "hybrid"
    assert made.slots.value >= 4
    none = {"emulated.memory": "276MiB", "context": 16}
    made = experts(**none)
    assert (made.placement.value, made.slots.value) == ("host", 0)
    assert "a layer uses 4 experts" in made.placement.reason
    with pytest.raises(CapacityError, match="at least 4 slots"):
        plan(**none, **HYBRID)
    with pytest.raises(CapacityError, match="no experts"):
        plan(**{"emulated.memory": "200MiB"})
    with pytest.raises(CapacityError, match="resident"):
        plan(**tight, **{"experts.placement": "resident"})


def test_context_comes_first() -> None:
    small = plan(**{"emulated.memory": "400MiB", "context": 512})
    large = plan(**{"emulated.memory": "400MiB", "context": 4096})
    assert large.context.value == 4096
    assert large.memory.expert_slots < small.memory.expert_slots
    with pytest.raises(CapacityError, match=r"context = 40000.*at most \d+"):
        plan(facts(max_context=40_000), **{"emulated.memory": "400MiB", "context": 40_000})


def declared(tmp_path: Path, link: float, host: float, **more: object) -> dict[str, str]:
    lines = [f"link_gbps = {link}", f"host_gbps = {host}", *(f"{k} = {v}" for k, v in more.items())]
    file = tmp_path / "box.toml"
    file.write_text("\n".join(lines))
    return {"emulated.machine": str(file), "emulated.memory": "400MiB"}


def test_a_weak_cpu_fills_all(tmp_path: Path) -> None:
    made = experts(**declared(tmp_path, 50, 2))
    assert (made.placement.value, made.fill.value) == ("hybrid", "all")
    assert "always pays" in made.fill.reason
    assert all(m == q for m, q in enumerate(made.quota(1)))


def test_a_weak_link_leaves_all_to_the_host(tmp_path: Path) -> None:
    made = experts(**declared(tmp_path, 0.1, 50))
    assert made.placement.value == "host"
    assert "link never pays" in made.placement.reason
    asked = experts(**declared(tmp_path, 0.1, 50), **HYBRID)
    assert (asked.placement.value, asked.fill.value) == ("hybrid", "none")


def test_no_pinning_means_staged_copies(tmp_path: Path) -> None:
    assert experts().copies.value == "direct"
    made = experts(**declared(tmp_path, 10, 30, pinning="false"))
    assert made.copies.value == "staged"
    assert "cannot be pinned" in made.copies.reason


def test_rules_by_name(tmp_path: Path) -> None:
    box = declared(tmp_path, 10, 40, host_shared_gbps=40)
    rule = {
        name: experts(**box, **HYBRID, **{"experts.fill": name}) for name in ("all", "none", "0.5")
    }
    assert rule["all"].quota(1)[:5] == (0, 1, 2, 3, 4)
    assert rule["none"].quota(2)[:5] == (0, 0, 0, 0, 0)
    assert rule["0.5"].quota(3)[:5] == (0, 1, 1, 2, 2)
    paper = experts(**box, **HYBRID, **{"experts.fill": "paper"})
    # q* = m / 4, at least one
    assert paper.quota(4)[:9] == (0, 1, 1, 1, 1, 1, 2, 2, 2)
    # 16 misses take max(q/10, (16-q)/40): 3 fills 0.325, 2 or 4 are slower
    assert experts(**box, **HYBRID, **{"experts.fill": "balanced"}).quota(4)[16] == 3
    assert len(paper.quota(4)) == 33


KINDS = layer_kinds(facts())
ROW = ProfileRow(8e9, 30e9, 7e9, 25e9, 3e-6, 8e-6)


def test_rates_measured_declared_guessed(tmp_path: Path) -> None:
    measured = Found(BandwidthProfile("f", dict.fromkeys(KINDS, ROW)), "measured: here")
    made = experts(found=measured)
    assert (made.rates.value, list(made.rows.values())) == ("measured", [ROW])
    assert experts(found=measured, **declared(tmp_path, 10, 30)).rates.value == "declared"
    guess = experts(**{"emulated.link": "4GB/s"})
    assert guess.rates.value == "default"
    assert "headrace measure" in guess.rates.reason
    row = next(iter(guess.rows.values()))
    assert (row.link, row.host) == (4e9, 20e9)  # four cores
    part = Found(BandwidthProfile("f", {"other": ROW}), "measured: here")
    assert "no row" in experts(found=part).rates.reason


def test_a_profile_of_another_machine_is_ignored_and_said(tmp_path: Path) -> None:
    path = profile_path(tmp_path, facts())
    mine = fingerprint("Water Wheel 9", 4, "emulated", facts())
    assert find_profile(path, mine).profile is None
    BandwidthProfile(mine, dict.fromkeys(KINDS, ROW)).save(path)
    assert experts(found=find_profile(path, mine)).rates.value == "measured"
    for other in (
        fingerprint("Mill 3", 4, "emulated", facts()),
        fingerprint("Water Wheel 9", 3, "emulated", facts()),
        fingerprint("Water Wheel 9", 4, "emulated, link 1e9 B/s", facts()),
    ):
        made = experts(found=find_profile(path, other))
        assert made.rates.value == "default"
        assert "ignored" in made.rates.reason
        assert "Water Wheel 9, 4 cores" in made.rates.reason
    path.write_text("{")
    assert "ignored" in experts(found=find_profile(path, mine)).rates.reason


def test_models_of_other_kinds_have_other_profiles(tmp_path: Path) -> None:
    wide = facts(expert_bytes=(0, MIB, MIB, MIB, 2 * MIB), total_bytes=GIB)
    assert profile_path(tmp_path, wide) != profile_path(tmp_path, facts())
    assert len(layer_kinds(wide)) == 2
    made = experts(wide)
    assert made.slot_bytes == 2 * MIB
    assert made.kinds[0] is None
    assert made.kinds[1] == made.kinds[3] != made.kinds[4]


def test_devices_and_what_they_refuse() -> None:
    with pytest.raises(ConfigError, match="without experts"):
        plan(facts(experts=(0,) * 5, top_k=(0,) * 5, expert_bytes=(0,) * 5))
    with pytest.raises(ConfigError, match=r"hybrid.*device = emulated"):
        plan(device="cpu", **HYBRID)
    assert "needs a device" in plan(device="auto", **HYBRID).device.reason
    assert plan(device="cpu").experts is None
    with pytest.raises(ConfigError, match=r"emulated\.machine"):
        plan(**{"emulated.clock": "virtual"})
    with pytest.raises(ConfigError, match="no machine 'cray-1'"):
        plan(**{"emulated.machine": "cray-1"})
    with pytest.raises(CapacityError, match=r"emulated\.memory.*at most"):
        plan(**{"emulated.memory": "64GiB"})
    capped = plan(**{"memory.device_bytes": "400MiB"})
    assert capped.memory.used <= capped.memory.free == 400 * MIB


def test_every_choice_has_a_reason() -> None:
    made = plan(**{"emulated.memory": "400MiB"})
    assert len(made.lines()) == len(made.choices()) == 19
    assert all(choice.reason for choice in made.choices().values())


@given(
    memory=st.integers(1, 4 * GIB),
    row=st.integers(1, 8 * MIB),
    wide=st.integers(1, 64),
    top_k=st.integers(1, 8),
    context=st.none() | st.integers(1, 4096),
    cache=st.none() | st.sampled_from(["1 slot", "10%", "50%", "64MiB"]),
    placement=st.sampled_from(["auto", "resident", "host", "hybrid"]),
    kv=st.none() | st.integers(1, GIB),
)
def test_a_device_budget_never_exceeds_its_memory(
    memory: int,
    row: int,
    wide: int,
    top_k: int,
    context: int | None,
    cache: str | None,
    placement: str,
    kv: int | None,
) -> None:
    model = facts(
        experts=(0, wide, wide, wide, wide),
        top_k=(0, *(min(top_k, wide),) * 4),
        expert_bytes=(0, row, row, row, row),
        total_bytes=256 * MIB + 4 * wide * row,
    )
    machine = dataclasses.replace(MACHINE, ram_free=24 * GIB)
    keys = {"emulated.memory": memory, "context": context, "experts.cache": cache}
    config = EngineConfig.of(
        device="emulated", **keys, **{"experts.placement": placement, "memory.kv_bytes": kv}
    )
    try:
        made = resolve(config, machine, model)
    except HeadraceError:
        return
    assert made.experts is not None
    assert made.memory.used <= made.memory.free <= memory
    assert made.memory.kv_blocks >= 1
    assert made.memory.expert_slots == made.experts.slots.value <= 4 * wide
    assert (made.memory.expert_slots == 0) == (made.experts.placement.value == "host")
    assert made.context.value <= made.memory.kv_tokens
    if placement != "auto":
        assert made.experts.placement.value == placement
