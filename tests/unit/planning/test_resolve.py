"""The plan: what fits, what is refused with which numbers, and that every value has its reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.config import EngineConfig
from headrace.errors import CapacityError, ConfigError
from headrace.planning.budget import CacheNeed, mib, plan_memory
from headrace.planning.counts import STEP_TOKENS
from headrace.planning.facts import KvNeed, ModelFacts, RecurrentNeed, StateNeed
from headrace.planning.machine import Machine
from headrace.planning.resolve import resolve

GIB = 1 << 30
MIB = 1 << 20
MACHINE = Machine("Water Wheel 9", 8, 4, 32 * GIB, 24 * GIB, ("scalar",))


def facts(**over: Any) -> ModelFacts:
    """Eight attention layers, 4 KiB of bfloat16 KV per token and layer: 32 KiB in all."""
    numbers: dict[str, Any] = {
        "family": "test",
        "layers": 8,
        "hidden": 64,
        "vocab": 1000,
        "max_context": 40_000,
        "state": (KvNeed(1024, 1024),) * 8,
        "experts": (8,) * 8,
        "top_k": (2,) * 8,
        "expert_bytes": (MIB,) * 8,
        "total_bytes": 4 * GIB,
        "dtype": "bfloat16",
    }
    return ModelFacts(**(numbers | over))


def machine(free: int) -> Machine:
    return dataclasses.replace(MACHINE, ram_free=free)


def test_with_room_everything_is_the_models_own() -> None:
    plan = resolve(EngineConfig(), MACHINE, facts())
    # 24 free - 4 weights - 2 reserve = 18 GiB, less than 16 sequences of 40,000 tokens (19.5 GiB).
    assert plan.context.value == 40_000
    assert "model's own" in plan.context.reason
    assert plan.kv_blocks.value == 18 * GIB // (16 * 32 * 1024)
    assert plan.memory.reserve == 2 * GIB
    assert (plan.dtype.value, plan.exact) == ("bfloat16", False)
    assert (plan.threads.value, plan.device.value) == (4, "cpu")
    assert plan.state_slots.value == 0
    assert plan.sequences.value == 16
    assert plan.step_tokens.value == STEP_TOKENS


def test_no_more_kv_than_is_useful() -> None:
    config = EngineConfig.of(**{"schedule.max_sequences": 2, "context": 1000})
    plan = resolve(config, MACHINE, facts())
    assert plan.kv_blocks.value == 2 * 63
    assert plan.context.value == 1000
    assert "asked for" in plan.context.reason


def test_memory_cuts_the_context_and_says_so() -> None:
    # 5 GiB free, 4 weights; half of what is left is kept: 512 MiB / 32 KiB = 16,384 tokens
    plan = resolve(EngineConfig(), machine(5 * GIB), facts())
    assert plan.context.value == 16_384
    assert "40000" in plan.context.reason
    assert "16384" in plan.context.reason


def test_more_context_than_fits_or_exists() -> None:
    with pytest.raises(CapacityError, match=r"context = 20000.*at most 16384"):
        resolve(EngineConfig.of(context=20_000), machine(5 * GIB), facts())
    with pytest.raises(ConfigError, match=r"context = 50000.*at most 40000"):
        resolve(EngineConfig.of(context=50_000), MACHINE, facts())
    assert (
        resolve(EngineConfig.of(context=16_384), machine(5 * GIB), facts()).context.value == 16_384
    )


def test_kv_bytes_as_asked() -> None:
    config = EngineConfig.of(**{"memory.kv_bytes": 64 * MIB})
    plan = resolve(config, MACHINE, facts())
    assert plan.kv_blocks.value == 128
    assert plan.context.value == 2048
    with pytest.raises(CapacityError, match="at most"):
        resolve(EngineConfig.of(**{"memory.kv_bytes": 19 * GIB}), MACHINE, facts())
    with pytest.raises(CapacityError, match="16 tokens need"):
        resolve(EngineConfig.of(**{"memory.kv_bytes": 1000}), MACHINE, facts())


def test_float32_doubles_kv_and_is_exact() -> None:
    plan = resolve(EngineConfig(), machine(5 * GIB), facts(dtype="float32"))
    assert plan.exact
    assert plan.context.value == 8192
    asked = resolve(EngineConfig.of(dtype="float32"), machine(5 * GIB), facts())
    assert asked.exact
    assert asked.context.value == 8192
    assert not resolve(EngineConfig(), MACHINE, facts(dtype="float16")).exact


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(CapacityError, match=r"4034 MiB.*1024 MiB") as raised:
        resolve(EngineConfig(), machine(GIB), facts())
    assert raised.value.retry_s is None
    dense = facts(experts=(0,) * 8, top_k=(0,) * 8, expert_bytes=(0,) * 8)
    with pytest.raises(CapacityError, match=r"4096 MiB.*1024 MiB"):
        resolve(EngineConfig(), machine(GIB), dense)
    with pytest.raises(CapacityError, match="keys and values"):
        resolve(EngineConfig(), machine(4 * GIB + 1000), dense)


def recurrent(each: int) -> tuple[StateNeed, ...]:
    return (RecurrentNeed((each // 8, 1, 1), (each // 8, 1)), *facts().state)


def test_recurrent_state_takes_a_quarter_at_most() -> None:
    plan = resolve(EngineConfig(), MACHINE, facts(state=recurrent(64 * MIB)))
    assert (plan.state_slots.value, plan.sequences.value) == (32, 16)
    assert plan.memory.state_bytes == 2 * GIB
    off = EngineConfig.of(**{"memory.prefix_cache": "off"})
    plan = resolve(off, MACHINE, facts(state=recurrent(64 * MIB)))
    assert plan.state_slots.value == plan.sequences.value == 16
    plan = resolve(EngineConfig(), machine(5 * GIB), facts(state=recurrent(64 * MIB)))
    assert plan.state_slots.value == plan.sequences.value == 2
    assert "16" in plan.sequences.reason
    with pytest.raises(CapacityError, match="state of one sequence"):
        resolve(EngineConfig(), machine(5 * GIB), facts(state=recurrent(GIB)))


def test_a_model_without_attention() -> None:
    plan = resolve(EngineConfig(), MACHINE, facts(state=(*recurrent(MIB)[:1], None)))
    assert plan.context.value == 40_000
    assert plan.memory.kv_bytes == 0


def test_devices_to_come_are_refused() -> None:
    with pytest.raises(ConfigError, match="cuda"):
        resolve(EngineConfig.of(device="cuda"), MACHINE, facts())


def test_every_line_has_a_reason() -> None:
    plan = resolve(EngineConfig.of(threads=3), MACHINE, facts())
    assert len(plan.lines()) == len(plan.choices()) == 9
    for line, (name, choice) in zip(plan.lines(), plan.choices().items(), strict=True):
        assert line.startswith(name)
        assert str(choice.value) in line
        assert line.endswith(choice.reason)
        assert choice.reason
    assert "18.0 GiB" in plan.kv_blocks.reason
    assert "24.0 GiB free - 4096 MiB weights - 2048 MiB reserve" in plan.kv_blocks.reason


@given(
    free=st.integers(0, 64 * GIB),
    weights=st.integers(1, 40 * GIB),
    kv=st.integers(0, 1 << 16),
    state=st.integers(0, 1 << 26),
    context=st.integers(1, 1 << 18),
    sequences=st.integers(1, 64),
    block_tokens=st.integers(1, 64),
)
def test_a_budget_never_exceeds_what_is_free(
    free: int,
    weights: int,
    kv: int,
    state: int,
    context: int,
    sequences: int,
    block_tokens: int,
) -> None:
    needs: list[StateNeed] = [KvNeed(kv, kv)] if kv else []
    if state:
        needs.append(RecurrentNeed((state, 1, 1), (1, 1)))
    model = facts(state=tuple(needs), total_bytes=weights)
    need = CacheNeed(context, sequences, block_tokens, 2)
    try:
        budget = plan_memory(model, ram_total=64 * GIB, ram_free=free, need=need)
    except CapacityError:
        budget = None
    assume(budget is not None)
    assert budget is not None
    assert budget.weights + budget.reserve + budget.state_bytes + budget.kv_bytes <= free
    assert budget.kv_blocks >= 1
    assert (budget.state_slots > 0) == (state > 0)
    assert budget.kv_tokens <= sequences * (context + block_tokens)


def test_bytes_for_people() -> None:
    assert [mib(n) for n in (1000, 5 * MIB, 300 * MIB, 20 * GIB)] == [
        "1 KiB",
        "5120 KiB",
        "300 MiB",
        "20.0 GiB",
    ]
