"""Contents of blocks and state slots, from one number to another, on the device or over the link to
the host tier and back: in the order in which they were listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from headrace.cache.lease import Copies, Pair
from headrace.models.state import KvPool, LayerState, RecurrentPool, State

Select = Callable[[LayerState], tuple[Tensor, ...]]  # what is copied of a layer


class Caches(Protocol):
    """Keys, values and state of every layer; another object after each resize."""

    @property
    def state(self) -> State: ...


class Crossing:
    """Over the pools of a device and, where there is one, of its host tier."""

    def __init__(
        self,
        device: Caches,
        block_tokens: int,
        host: Caches | None = None,
        crossed: Callable[[int, float], None] | None = None,
    ) -> None:
        """`crossed` hears of (bytes, seconds) that went over the link."""
        self._device, self._host = device, host
        self._block_tokens, self._crossed = block_tokens, crossed

    def copy(self, copies: Copies) -> None:
        began, nbytes = time.perf_counter(), 0
        for window, listed in ((None, copies.blocks), *copies.windows.items()):
            for pairs in batches(listed):
                nbytes += self._copy(pairs, partial(_keys, window), self._block_tokens)
        for pairs in batches(copies.states):
            nbytes += self._copy(pairs, _recurrent, 1)
        if nbytes and self._crossed is not None:
            self._crossed(nbytes, time.perf_counter() - began)

    def _copy(self, pairs: Sequence[Pair], of: Select, entries: int) -> int:
        """Bytes that crossed the link."""
        source, target = pairs[0][0] < 0, pairs[0][1] < 0
        old = torch.tensor([_plain(pair[0]) for pair in pairs])
        new = torch.tensor([_plain(pair[1]) for pair in pairs])
        crossed = 0
        for i in range(len(self._device.state)):
            reads, writes = of(self._layer(source, i)), of(self._layer(target, i))
            for a, b in zip(reads, writes, strict=True):
                wide = a.view(-1, entries, *a.shape[1:])[old]
                b.view(-1, entries, *b.shape[1:])[new] = wide
                crossed += wide.nbytes if source != target else 0
        return crossed

    def _layer(self, host: bool, layer: int) -> LayerState:
        caches = self._host if host else self._device
        assert caches is not None, "a copy to a host tier that is not there"
        return caches.state[layer]


def _keys(window: int | None, pool: LayerState) -> tuple[Tensor, ...]:
    if isinstance(pool, KvPool) and pool.window == window:
        return pool.stored
    return ()


def _recurrent(pool: LayerState) -> tuple[Tensor, ...]:
    return pool.tensors if isinstance(pool, RecurrentPool) else ()


def batches(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """As few as possible, each of one direction, in which the order does not matter."""
    batch: list[Pair] = []
    touched: set[int] = set()  # targets so far
    read: set[int] = set()
    way = (False, False)
    for old, new in pairs:
        clash = old in touched or new in touched or new in read
        if batch and (clash or (old < 0, new < 0) != way):
            yield batch
            batch, touched, read = [], set(), set()
        way = (old < 0, new < 0)
        batch.append((old, new))
        touched.add(new)
        read.add(old)
    if batch:
        yield batch


def _plain(number: int) -> int:
    return ~number if number < 0 else number
