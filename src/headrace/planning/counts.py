"""How much the caches of a plan hold, each count with its reason. No torch."""

from __future__ import annotations

from headrace.config import EngineConfig
from headrace.errors import CapacityError
from headrace.planning.budget import CacheNeed, MemoryBudget, mib
from headrace.planning.facts import ModelFacts
from headrace.planning.placement import Choice

STEP_TOKENS = 512
CPU_STATES, DEVICE_STATES = 32, 8  # slots at least, where saved states are kept
# Tokens of context to a saved state that is windows alone; windows are one part in so many of it.
WINDOW_SPACING, WINDOW_SHARE = 1024, 4
MOST_DEVICE_STATES = 32  # of slots for which experts are given up


def context_choice(
    config: EngineConfig, own: int, need: CacheNeed, memory: MemoryBudget
) -> Choice[int]:
    """`own`: the model's."""
    fits = min(memory.kv_tokens, need.context)
    if config.context is not None:
        if config.context > fits:
            raise CapacityError(
                f"context = {config.context}, but memory holds keys and values of {fits} tokens",
                expected=f"at most {fits}",
                fix="lower the context, raise memory.kv_bytes or free memory",
            )
        return Choice(config.context, f"asked for; the model's own is {own}")
    if fits < own:
        return Choice(fits, f"the model's own is {own}, memory holds {fits} tokens")
    return Choice(own, "the model's own")


def sequences_choice(config: EngineConfig, memory: MemoryBudget) -> Choice[int]:
    asked = config.schedule.max_sequences
    if memory.state_slots and memory.state_slots < asked:
        return Choice(
            memory.state_slots, f"schedule.max_sequences is {asked}, memory holds fewer states"
        )
    return Choice(asked, "schedule.max_sequences")


def state_slots_choice(facts: ModelFacts, memory: MemoryBudget) -> Choice[int]:
    if memory.state_slots == 0:
        return Choice(0, "no recurrent layers and no windows")
    held = "".join(f", the last {n} tokens of windows in each" for n in facts.window_elements())
    why = f"one per sequence, the others save states, {mib(memory.state_bytes)} in all{held}"
    return Choice(memory.state_slots, why)


def saved_states(config: EngineConfig, facts: ModelFacts, context: int, *, on_cpu: bool) -> int:
    """Slots that the prefix cache is worth; on a device they are taken from experts."""
    if config.memory.prefix_cache == "off":
        return 0
    least, most = (CPU_STATES, 1 << 20) if on_cpu else (DEVICE_STATES, MOST_DEVICE_STATES)
    windows = facts.window_elements()
    if not windows or facts.state_bytes_per_sequence():
        return least
    # Windows are small beside the context that they are parts of: they are saved all along.
    apart = max(WINDOW_SPACING, WINDOW_SHARE * max(windows))
    return max(least, min(context // apart, most))


def kv_blocks_choice(config: EngineConfig, memory: MemoryBudget, dtype: str) -> Choice[int]:
    size = f"{memory.kv_tokens} tokens of {dtype}, {mib(memory.kv_bytes)}"
    if config.memory.kv_bytes is not None:
        return Choice(memory.kv_blocks, f"{size}: memory.kv_bytes")
    return Choice(memory.kv_blocks, f"{size}: {memory.explain()}")


def step_tokens_choice(config: EngineConfig) -> Choice[int]:
    asked = config.schedule.step_tokens
    if asked is not None:
        return Choice(asked, "schedule.step_tokens")
    return Choice(STEP_TOKENS, "other streams wait at most for so many prompt tokens")
