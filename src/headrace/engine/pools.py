"""The tensors behind block and state-slot numbers: one pool per layer, made once, never resized.

Nothing is initialised here, so pages that no sequence reached are never touched: a KV slot is
written before it is read, and recurrent state is zeroed when a sequence begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from headrace.device.device import Device
from headrace.errors import CapacityError
from headrace.models.state import KvPool, LayerState, RecurrentPool, State
from headrace.planning.facts import KvNeed, StateNeed


def make_state(
    needs: Sequence[StateNeed | None],
    device: Device,
    *,
    kv_slots: int,
    state_slots: int,
    kv_dtype: torch.dtype,
) -> State:
    """A pool per layer. `kv_slots`: tokens, those of reserved blocks included.

    Raises CapacityError where the system refuses the address space.
    """

    def pool(need: StateNeed | None) -> LayerState:
        if need is None:
            return None
        if isinstance(need, KvNeed):
            heads = need.kv_heads
            return KvPool(
                keys=device.empty((kv_slots, heads, need.key // heads), kv_dtype),
                values=device.empty((kv_slots, heads, need.value // heads), kv_dtype),
            )
        return RecurrentPool(
            matrix=device.empty((state_slots, *need.matrix)),
            conv=device.empty((state_slots, *need.conv)),
        )

    try:
        return [pool(need) for need in needs]
    except RuntimeError as error:
        raise CapacityError(
            f"the system refused memory for {kv_slots} tokens of keys and values: {error}",
            fix="set memory.kv_bytes, lower the context or allow more memory (ulimit -v)",
        ) from error


def clear_states(state: State, slots: Iterable[int]) -> None:
    """Begin sequences in these recurrent slots."""
    pools = [pool for pool in state if isinstance(pool, RecurrentPool)]
    for slot in slots:
        for pool in pools:
            pool.matrix[slot].zero_()
            pool.conv[slot].zero_()
