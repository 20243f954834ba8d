"""Policies beside LRU: recency with frequency, LFU with ageing, and fixed sets.

A (layer, expert) cannot be used again before a whole step has passed, so order is kept by step: a
row's value changes only when it is touched or a step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from headrace.planning.lru import Lru, Policy


class Term(NamedTuple):
    half_life: float  # steps
    weight: float


class Decayed:
    """Value = sum over past uses of `weight * 2^(-steps since / half_life)`, for each of the terms.

    With one term this is LRFU (Lee et al., IEEE ToC 50(12), 2001): a short half-life gives LRU, a
    long one LFU with ageing. Steps are counted layer by layer: rows of layers that this step has
    yet to reach are one step younger than rows of layers behind it, whose next chance is a whole
    step away. Cost: one pass over the layer that is touched, and one minimum per victim.
    """

    fixed = False

    def __init__(self, name: str, experts: Sequence[int], terms: Sequence[Term]) -> None:
        self.name = name
        ends = list(accumulate(experts))
        self._spans = [slice(end - n, end) for end, n in zip(ends, experts, strict=True)]
        self._layer = [layer for layer, n in enumerate(experts) for _ in range(n)]
        self._terms = terms
        self._keep = [2 ** (-1 / term.half_life) for term in terms]
        self._sums = [np.zeros(len(self._layer)) for _ in terms]
        self._value = np.zeros(len(self._layer))
        self._resident = np.zeros(len(self._layer), np.bool_)
        self._rank = np.full(len(self._layer), np.inf)  # the value where resident
        self._lowest = np.full(len(experts), np.inf)  # rank of each layer

    def begin_step(self) -> None:
        pass

    def touch(self, rows: Sequence[int]) -> None:
        layer = self._layer[rows[0]]
        span = self._spans[layer]
        at = np.array(rows)
        value = self._value[span]
        value[:] = 0
        for sums, keep, term in zip(self._sums, self._keep, self._terms, strict=True):
            part = sums[span]
            part *= keep
            sums[at] += 1
            value += term.weight * part
        # What is below this is forgotten: numbers near zero are slow to compute with.
        value[value < _FORGOTTEN] = 0
        self._rank_layer(layer)

    def add(self, row: int) -> None:
        self._resident[row] = True
        self._rank[row] = value = self._value[row]
        layer = self._layer[row]
        self._lowest[layer] = min(self._lowest[layer], value)

    def remove(self, row: int) -> None:
        self._resident[row] = False
        self._hide(row)

    def victims(self, count: int, spared: Collection[int]) -> list[int]:
        hidden = [row for row in spared if self._resident[row]]
        for row in hidden:
            self._hide(row)
        found: list[int] = []
        while len(found) < count:
            layer = int(self._lowest.argmin())
            if self._lowest[layer] == np.inf:
                break
            span = self._spans[layer]
            row = span.start + int(self._rank[span].argmin())
            found.append(row)
            self._hide(row)
        # Whoever asked may evict none of them: all stay candidates.
        for row in hidden + found:
            self.add(row)
        return found

    def values(self, rows: Sequence[int]) -> list[float]:
        values: list[float] = self._value[np.array(rows, np.intp)].tolist()
        return values

    def prefilled(self, counts: Mapping[int, int], tokens: int) -> None:
        """As if each token had been a step, and every row used evenly over them."""
        share = np.zeros(len(self._layer))
        share[list(counts)] = np.fromiter(counts.values(), np.float64) / tokens
        self._value[:] = 0
        for sums, keep, term in zip(self._sums, self._keep, self._terms, strict=True):
            left = keep**tokens
            sums *= left
            sums += share * ((1 - left) / (1 - keep))
            self._value += term.weight * sums
        for layer in range(len(self._spans)):
            self._rank_layer(layer)

    def wanted(self, capacity: int) -> Sequence[int] | None:
        return None

    def check(self, resident: Collection[int]) -> None:
        assert set(np.flatnonzero(self._resident).tolist()) == set(resident)
        assert (self._rank == np.where(self._resident, self._value, np.inf)).all()
        for span, lowest in zip(self._spans, self._lowest, strict=True):
            assert lowest == min(self._rank[span], default=np.inf)

    def _rank_layer(self, layer: int) -> None:
        span = self._spans[layer]
        rank = self._rank[span]
        np.copyto(rank, np.inf)
        np.copyto(rank, self._value[span], where=self._resident[span])
        self._lowest[layer] = rank.min(initial=np.inf)

    def _hide(self, row: int) -> None:
        """No victim for now."""
        layer = self._layer[row]
        self._rank[row] = np.inf
        self._lowest[layer] = self._rank[self._spans[layer]].min()


_FORGOTTEN = 1e-30


class Fixed:
    """A set chosen once: `order` lists rows, the first that fit are resident."""

    fixed = True

    def __init__(self, name: str, order: Sequence[int]) -> None:
        self.name = name
        self._rows: list[int] = list(order)
        self._resident: set[int] = set()

    def begin_step(self) -> None:
        pass

    def touch(self, rows: Sequence[int]) -> None:
        pass

    def add(self, row: int) -> None:
        self._resident.add(row)

    def remove(self, row: int) -> None:
        self._resident.remove(row)

    def victims(self, count: int, spared: Collection[int]) -> list[int]:
        rank = {row: i for i, row in enumerate(self._rows)}
        rows = [row for row in self._resident if row not in spared]
        return sorted(rows, key=lambda row: -rank.get(row, len(rank)))[:count]

    def values(self, rows: Sequence[int]) -> list[float]:
        return [0.0] * len(rows)

    def prefilled(self, counts: Mapping[int, int], tokens: int) -> None:
        pass

    def wanted(self, capacity: int) -> Sequence[int] | None:
        return self._rows[:capacity]

    def check(self, resident: Collection[int]) -> None:
        assert self._resident == set(resident)


class AtPrefill(Fixed):
    """Each prompt's most used experts, an equal number of every layer; kept while decoding."""

    def __init__(self, name: str, experts: Sequence[int]) -> None:
        super().__init__(name, _round_robin(_layers(experts)))
        self._experts = experts

    def prefilled(self, counts: Mapping[int, int], tokens: int) -> None:
        if counts:
            self._rows = by_count(self._experts, counts, per_layer=True)


def _layers(experts: Sequence[int]) -> list[list[int]]:
    base, layers = 0, []
    for count in experts:
        layers.append(list(range(base, base + count)))
        base += count
    return layers


def _round_robin(layers: Sequence[Sequence[int]]) -> list[int]:
    deepest = max((len(rows) for rows in layers), default=0)
    return [rows[i] for i in range(deepest) for rows in layers if i < len(rows)]


def by_count(
    experts: Sequence[int], counts: Mapping[int, int], *, per_layer: bool = False
) -> list[int]:
    """All rows, the most used first: over all layers, or in turn from each layer."""
    layers = [sorted(rows, key=lambda row: (-counts.get(row, 0), row)) for rows in _layers(experts)]
    if per_layer:
        return _round_robin(layers)
    return sorted(chain.from_iterable(layers), key=lambda row: (-counts.get(row, 0), row))


# Half-lives in steps and weights; chosen in `headrace simulate --synthetic`, see docs/simulator.md.
DEFAULT_TERMS = (Term(16.0, 0.1), Term(2.0, 1.0))
LFU_TERMS = (Term(128.0, 1.0),)

Make = Callable[[Sequence[int], Mapping[int, int]], Policy]

# (experts per layer, uses of each row in a profile) -> policy. The engine's default comes first.
POLICIES: dict[str, Make] = {
    "recency-frequency": lambda experts, _: Decayed("recency-frequency", experts, DEFAULT_TERMS),
    "lru": lambda experts, _: Lru(),
    "lfu-aged": lambda experts, _: Decayed("lfu-aged", experts, LFU_TERMS),
    "at-prefill": lambda experts, _: AtPrefill("at-prefill", experts),
    "static-profile": lambda experts, profile: Fixed("static-profile", by_count(experts, profile)),
    "static-layers": lambda experts, _: Fixed("static-layers", list(range(sum(experts)))),
}
DEFAULT_POLICY = "recency-frequency"
