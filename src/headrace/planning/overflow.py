"""The prefix cache's second tier: RAM for what a device must part with. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import EngineConfig
from headrace.planning.budget import CacheNeed, mib, reserve_bytes, useful_blocks
from headrace.planning.facts import ModelFacts
from headrace.planning.machine import Machine

FREE_SHARE = 4  # of the RAM that weights and reserve leave, at most one part in so many
STATE_SHARE = 2  # of that, one part in so many is for states, where there are any
FULL_CONTEXTS = 4  # more than so many times all sequences at full length is of no use


@dataclass(frozen=True, slots=True)
class Overflow:
    """Blocks and states that the host tier holds."""

    blocks: int = 0
    states: int = 0
    reason: str = "the cache lies in RAM as it is: there is one tier"


NO_OVERFLOW = Overflow()


def plan_overflow(
    facts: ModelFacts, need: CacheNeed, *, ram_left: int, asked: int | None
) -> Overflow:
    """For a device with memory of its own. `ram_left`: free beside weights and reserve; `asked`:
    bytes in all, None = a share of it."""
    nbytes = max(0, ram_left) // FREE_SHARE if asked is None else asked
    block = facts.kv_bytes_per_token(need.element_bytes) * need.block_tokens
    state = need.state_bytes(facts)
    if state + block > nbytes:
        # Keys and values are of no use without a state where a sequence has both.
        least = [f"{need.block_tokens} tokens"] * bool(block) + ["a state"] * bool(state)
        return Overflow(reason=f"{mib(nbytes)} of RAM hold less than {' and '.join(least)}")
    for_states = min(nbytes // STATE_SHARE, nbytes - block) if block else nbytes
    most_states = FULL_CONTEXTS * 16 * need.sequences
    states = min(max(1, for_states // state), most_states) if state else 0
    left = nbytes - states * state
    blocks = min(left // block, FULL_CONTEXTS * useful_blocks(need)) if block else 0
    size = f"{mib(blocks * block + states * state)} of RAM"
    why = "memory.host_cache" if asked is not None else "what the device parts with comes back"
    kept = (
        f"{blocks * need.block_tokens} tokens and {states} states"
        if state
        else (f"{blocks * need.block_tokens} tokens")
    )
    return Overflow(blocks, states, f"{kept}, {size}: {why}")


def overflow_for(
    config: EngineConfig, machine: Machine, facts: ModelFacts, need: CacheNeed
) -> Overflow:
    """For a device that `machine` has. Weights come first: RAM that they leave."""
    if config.memory.prefix_cache == "off":
        return Overflow(reason="memory.prefix_cache is off")
    left = machine.ram_free - facts.total_bytes - reserve_bytes(machine.ram_total)
    if config.device == "emulated" and machine.device is not None:
        left -= machine.device.memory_free  # made of the same RAM
    return plan_overflow(facts, need, ram_left=left, asked=config.memory.host_cache)
