"""The tensors behind block and state-slot numbers: elastic ranges, one or two per layer.

Addresses never move. Nothing is initialised here: a KV slot is written before it is read, and
recurrent state is zeroed when a sequence begins. So pages that no sequence reached are not in RAM,
but for those of the first few recurrent states where that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from headrace.cache.lease import Moves
from headrace.device.memory import ElasticRange
from headrace.engine.seq import Limits
from headrace.errors import CapacityError
from headrace.models.state import KvPool, LayerState, RecurrentPool, State
from headrace.planning.facts import KvNeed, RecurrentNeed, StateNeed

NO_MOVES = Moves({}, {})


class Memory(Protocol):
    """Where ranges that grow in place come from."""

    def elastic(self, reserved: int) -> ElasticRange: ...


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of entries, now and at most: KV slots are tokens, reserved blocks included."""

    kv_slots: int
    state_slots: int
    windows: Mapping[int, int] = field(default_factory=dict)  # KV slots by the window's tokens

    def of(self, need: StateNeed) -> int:
        if isinstance(need, RecurrentNeed):
            return self.state_slots
        return self.kv_slots if need.window is None else self.windows[need.window]


def sizes_of(limits: Limits, blocks: int, states: int) -> Sizes:
    """Of a device that holds so many."""
    size, first = limits.block_tokens, limits.first_block
    windows = {w.tokens: (first + w.blocks(states)) * size for w in limits.windows}
    return Sizes((first + blocks) * size, states, windows)


def host_sizes(limits: Limits, blocks: int, states: int) -> Sizes:
    """Of a host tier that holds so many."""
    size = limits.block_tokens
    return Sizes(blocks * size, states, {w.tokens: w.each * states * size for w in limits.windows})


@dataclass(frozen=True, slots=True)
class _Pool:
    """Entries of one shape in memory that grows in place."""

    memory: ElasticRange
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def entry_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def tensor(self, count: int) -> Tensor:
        flat = self.memory.tensor[: count * self.entry_bytes]
        return flat.view(self.dtype).view(count, *self.shape)


class Pools:
    """Caches of every layer. `state` is new after each resize; the memory is where it was."""

    def __init__(
        self,
        needs: Sequence[StateNeed | None],
        device: Memory,
        sizes: Sizes,
        most: Sizes,
        kv_dtype: torch.dtype,
        *,
        touched: int = 0,
    ) -> None:
        """`touched`: bytes of recurrent states, those of the lowest slots, that are in RAM at once;
        besides, what is left of a huge page for each tensor.

        Raises CapacityError where the device, or the system, refuses the memory.
        """
        self._device, self._most, self._kv_dtype = device, most, kv_dtype
        self._needs = tuple(needs)
        each = sum(_state_bytes(need) for need in needs)
        self._touched_states = touched // each if each else 0
        self._pools = [self._make(need) for need in needs]
        self._commit(sizes)

    @property
    def state(self) -> State:
        """One entry per layer."""
        return self._state

    def resize(
        self,
        sizes: Sizes,
        moves: Moves = NO_MOVES,
        *,
        block_tokens: int,
    ) -> None:
        """What moves; then the new sizes.

        Raises CapacityError where the device has not the memory; then nothing has grown.
        """
        windows = dict(zip(sizes.windows, moves.windows, strict=False))
        for pool in self._state:
            if isinstance(pool, KvPool):
                own = moves.blocks if pool.window is None else windows.get(pool.window, {})
                for tensor in pool.stored:
                    _move(tensor, own, block_tokens)
            elif pool is not None:
                for tensor in pool.tensors:
                    _move(tensor, moves.states, 1)
        self._commit(sizes)

    def _commit(self, sizes: Sizes) -> None:
        done: list[tuple[_Pool, int]] = []
        try:
            for need, pools in zip(self._needs, self._pools, strict=True):
                for pool in pools:
                    assert need is not None
                    done.append((pool, pool.memory.committed))
                    ready = self._touched_states if isinstance(need, RecurrentNeed) else 0
                    pool.memory.resize(
                        sizes.of(need) * pool.entry_bytes, touched=ready * pool.entry_bytes
                    )
        except CapacityError:
            for pool, nbytes in done:
                pool.memory.resize(nbytes)
            raise
        self.sizes = sizes
        self._state = [
            self._layer(need, pools) for need, pools in zip(self._needs, self._pools, strict=True)
        ]

    def _make(self, need: StateNeed | None) -> tuple[_Pool, ...]:
        if need is None:
            return ()
        if isinstance(need, KvNeed):
            widths = [width for width in (need.key, need.value) if width]
            shapes = [(need.kv_heads, width // need.kv_heads) for width in widths]
            return tuple(self._range(self._most.of(need), s, self._kv_dtype) for s in shapes)
        most = self._most.state_slots
        return tuple(self._range(most, s, torch.float32) for s in need.shapes)

    def _range(self, most: int, shape: tuple[int, ...], dtype: torch.dtype) -> _Pool:
        return _Pool(self._device.elastic(most * prod(shape) * dtype.itemsize), shape, dtype)

    def _layer(self, need: StateNeed | None, pools: tuple[_Pool, ...]) -> LayerState:
        if need is None:
            return None
        *first, last = (pool.tensor(self.sizes.of(need)) for pool in pools)
        if isinstance(need, KvNeed) and need.latent:
            return KvPool(last, last[..., : need.latent], need.window, latent=True)
        if isinstance(need, KvNeed):
            return KvPool(first[0], last, need.window)
        return RecurrentPool(first[0] if first else None, last)


def _state_bytes(need: StateNeed | None) -> int:
    """Of one recurrent state."""
    if not isinstance(need, RecurrentNeed):
        return 0
    return need.elements * torch.float32.itemsize


def _move(tensor: Tensor, moves: Mapping[int, int], entries: int) -> None:
    for old, new in moves.items():
        tensor[new * entries : (new + 1) * entries].copy_(
            tensor[old * entries : (old + 1) * entries]
        )


def clear_states(state: State, slots: Iterable[int]) -> None:
    """Begin sequences in these recurrent slots."""
    pools = [pool for pool in state if isinstance(pool, RecurrentPool)]
    for slot in slots:
        for pool in pools:
            for tensor in pool.tensors:
                tensor[slot].zero_()
