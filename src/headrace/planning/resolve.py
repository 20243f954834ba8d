"""Config + machine + model -> ExecutionPlan, in which every value carries its reason. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.config import EngineConfig
from headrace.errors import CapacityError, ConfigError
from headrace.planning.budget import CacheNeed, MemoryBudget, mib, plan_memory
from headrace.planning.facts import ModelFacts
from headrace.planning.machine import Machine

T = TypeVar("T")

STEP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A decided value and why."""

    value: T
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """All that the engine does is in here; nothing of it changes while it runs."""

    device: Choice[str]
    dtype: Choice[str]  # float32: exact matrix products and float32 KV; bfloat16: both may round
    threads: Choice[int]
    context: Choice[int]
    sequences: Choice[int]
    state_slots: Choice[int]
    kv_blocks: Choice[int]
    step_tokens: Choice[int]
    max_queued: int
    memory: MemoryBudget

    @property
    def exact(self) -> bool:
        """Activations are never rounded below float32."""
        return self.dtype.value == "float32"

    def choices(self) -> dict[str, Choice[str] | Choice[int]]:
        return {
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
            "context": self.context,
            "sequences": self.sequences,
            "state slots": self.state_slots,
            "kv blocks": self.kv_blocks,
            "step tokens": self.step_tokens,
        }

    def lines(self) -> list[str]:
        """For the start-up log: a line per choice, with its reason."""
        return [f"{name:<12} {c.value!s:>9}  {c.reason}" for name, c in self.choices().items()]


def resolve(config: EngineConfig, machine: Machine, facts: ModelFacts) -> ExecutionPlan:
    """Raises ConfigError (asked for what the model or this build has not) or CapacityError.

    `machine.ram_free` is what was free before the weights were read.
    """
    dtype = resolve_dtype(config, facts)
    if config.context is not None and config.context > facts.max_context:
        raise ConfigError(
            f"context = {config.context}",
            expected=f"at most {facts.max_context}, which is the model's own",
        )
    need = CacheNeed(
        context=config.context or facts.max_context,
        sequences=config.schedule.max_sequences,
        block_tokens=config.memory.block_tokens,
        element_bytes=4 if dtype.value == "float32" else 2,
        kv_bytes=config.memory.kv_bytes,
    )
    memory = plan_memory(facts, ram_total=machine.ram_total, ram_free=machine.ram_free, need=need)
    return ExecutionPlan(
        device=resolve_device(config),
        dtype=dtype,
        threads=resolve_threads(config, machine),
        context=_context(config, facts, memory),
        sequences=_sequences(config, memory),
        state_slots=_state_slots(memory),
        kv_blocks=_kv_blocks(config, memory, dtype.value),
        step_tokens=_step_tokens(config),
        max_queued=config.schedule.max_queued,
        memory=memory,
    )


def resolve_device(config: EngineConfig) -> Choice[str]:
    if config.device == "cpu":
        return Choice("cpu", "asked for")
    if config.device == "auto":
        return Choice("cpu", "this version computes on the CPU only")
    raise ConfigError(
        f"device = {config.device!r}", expected="auto or cpu, all that this version computes on"
    )


def resolve_dtype(config: EngineConfig, facts: ModelFacts) -> Choice[str]:
    if config.dtype != "auto":
        return Choice(config.dtype, "asked for")
    if facts.dtype == "float32":
        return Choice("float32", "the checkpoint's own: exact products, float32 keys and values")
    return Choice("bfloat16", f"the checkpoint is {facts.dtype}: bfloat16 keys and values")


def resolve_threads(config: EngineConfig, machine: Machine) -> Choice[int]:
    if config.threads is not None:
        return Choice(config.threads, f"asked for; {machine.physical_cores} physical cores")
    return Choice(machine.physical_cores, f"physical cores this process may use: {machine.name}")


def _context(config: EngineConfig, facts: ModelFacts, memory: MemoryBudget) -> Choice[int]:
    fits = memory.kv_tokens
    if config.context is not None:
        if config.context > fits:
            raise CapacityError(
                f"context = {config.context}, but memory holds keys and values of {fits} tokens",
                expected=f"at most {fits}",
                fix="lower the context, raise memory.kv_bytes or free memory",
            )
        return Choice(config.context, f"asked for; the model's own is {facts.max_context}")
    if fits < facts.max_context:
        return Choice(fits, f"the model's own is {facts.max_context}, memory holds {fits} tokens")
    return Choice(facts.max_context, "the model's own")


def _sequences(config: EngineConfig, memory: MemoryBudget) -> Choice[int]:
    asked = config.schedule.max_sequences
    if memory.state_slots and memory.state_slots < asked:
        return Choice(
            memory.state_slots, f"schedule.max_sequences is {asked}, memory holds fewer states"
        )
    return Choice(asked, "schedule.max_sequences")


def _state_slots(memory: MemoryBudget) -> Choice[int]:
    if memory.state_slots == 0:
        return Choice(0, "no recurrent layers")
    return Choice(memory.state_slots, f"one per sequence, {mib(memory.state_bytes)} in all")


def _kv_blocks(config: EngineConfig, memory: MemoryBudget, dtype: str) -> Choice[int]:
    size = f"{memory.kv_tokens} tokens of {dtype}, {mib(memory.kv_bytes)}"
    if config.memory.kv_bytes is not None:
        return Choice(memory.kv_blocks, f"{size}: memory.kv_bytes")
    return Choice(memory.kv_blocks, f"{size}: {memory.explain()}")


def _step_tokens(config: EngineConfig) -> Choice[int]:
    asked = config.schedule.step_tokens
    if asked is not None:
        return Choice(asked, "schedule.step_tokens")
    return Choice(STEP_TOKENS, "other streams wait at most for so many prompt tokens")
