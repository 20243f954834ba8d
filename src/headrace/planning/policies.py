"""Policies beside LRU: recency with frequency, LFU with ageing, and fixed sets.

A (layer, expert) cannot be used again before a whole step has passed, so order is kept by step: a
row's value changes only when it is touched or a step begins. Values are integers, so that every
device decides alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.planning.lru import Lru, Policy

Ints = NDArray[np.int64]

KEEP_BITS = 24  # fraction bits of a factor that fades a sum
SUM_BITS = 32  # fraction bits of a sum of uses
_NOWHERE = np.iinfo(np.int64).max  # rank of a row that is not resident


class Term(NamedTuple):
    half_life: float  # steps
    weight: int

    @property
    def keep_q24(self) -> int:
        """What a step leaves of a past use, in 2^-24."""
        return round(math.pow(2, KEEP_BITS - 1 / self.half_life))


# Half-lives and weights; chosen in `headrace simulate --synthetic`, see docs/simulator.md.
DEFAULT_TERMS = (Term(2.0, 10), Term(16.0, 1))
LFU_TERMS = (Term(128.0, 1),)


@dataclass(frozen=True, slots=True)
class Fade:
    """What a prompt chunk does to each term: `sum = (sum * left_q24 >> 24) + uses * gain_q32`."""

    left_q24: tuple[int, ...]
    gain_q32: tuple[int, ...]


def fade_of(tokens: int, terms: Sequence[Term] = DEFAULT_TERMS) -> Fade:
    """As if each of `tokens` had been a step, and every row used evenly over them.

    A use of each step leaves `1 + keep + ... = (1 - keep^tokens) / (1 - keep)`.
    """
    assert tokens > 0
    left, gain = [], []
    for term in terms:
        keep = 2 ** (-1 / term.half_life)
        left.append(keep**tokens)
        gain.append((1 - left[-1]) / (1 - keep) / tokens)
    return Fade(
        tuple(round(part * 2**KEEP_BITS) for part in left),
        tuple(round(part * 2**SUM_BITS) for part in gain),
    )


class Decayed:
    """Value = sum over past uses of `weight * 2^(-steps since / half_life)`, for each of the terms.

    With one term this is LRFU (Lee et al., IEEE ToC 50(12), 2001): a short half-life gives LRU, a
    long one LFU with ageing. Steps are counted layer by layer: rows of layers that this step has
    yet to reach are one step younger than rows of layers behind it, whose next chance is a whole
    step away. Sums are integers in 2^-32, every product is rounded down. Cost: one pass over the
    layer that is touched, and one minimum per victim.
    """

    fixed = False

    def __init__(self, name: str, experts: Sequence[int], terms: Sequence[Term]) -> None:
        self.name = name
        ends = list(accumulate(experts))
        self._spans = [slice(end - n, end) for end, n in zip(ends, experts, strict=True)]
        self._layer = [layer for layer, n in enumerate(experts) for _ in range(n)]
        self._terms = terms
        # x + (x * (keep - 1) >> 24) is x * keep >> 24, and does not overflow on a long half-life.
        self._fade = [term.keep_q24 - (1 << KEEP_BITS) for term in terms]
        self._sums = [np.zeros(len(self._layer), np.int64) for _ in terms]
        self._value = np.zeros(len(self._layer), np.int64)
        self._resident = np.zeros(len(self._layer), np.bool_)
        self._rank = np.full(len(self._layer), _NOWHERE)  # the value where resident
        self._lowest = np.full(len(experts), _NOWHERE)  # rank of each layer

    def begin_step(self) -> None:
        pass

    def touch(self, rows: Sequence[int]) -> None:
        layer = self._layer[rows[0]]
        span = self._spans[layer]
        at = np.array(rows)
        value = self._value[span]
        value[:] = 0
        for sums, fade, term in zip(self._sums, self._fade, self._terms, strict=True):
            part = sums[span]
            part += (part * fade) >> KEEP_BITS
            sums[at] += 1 << SUM_BITS
            value += term.weight * part
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
            # The first of equal minima is the lowest row, within a layer and over the layers.
            layer = int(self._lowest.argmin())
            if self._lowest[layer] == _NOWHERE:
                break
            span = self._spans[layer]
            row = span.start + int(self._rank[span].argmin())
            found.append(row)
            self._hide(row)
        # Whoever asked may evict none of them: all stay candidates.
        for row in hidden + found:
            self.add(row)
        return found

    def values(self, rows: Sequence[int]) -> list[int]:
        values: list[int] = self._value[np.array(rows, np.intp)].tolist()
        return values

    def prefilled(self, counts: Mapping[int, int], tokens: int) -> None:
        """As if each token had been a step, and every row used evenly over them."""
        fade = fade_of(tokens, self._terms)
        at = np.fromiter(counts.keys(), np.intp)
        uses = np.fromiter(counts.values(), np.int64)
        self._value[:] = 0
        for sums, term, left, gain in zip(
            self._sums, self._terms, fade.left_q24, fade.gain_q32, strict=True
        ):
            sums[:] = _faded(sums, left)
            sums[at] += uses * gain
            self._value += term.weight * sums
        for layer in range(len(self._spans)):
            self._rank_layer(layer)

    def wanted(self, capacity: int) -> Sequence[int] | None:
        return None

    def check(self, resident: Collection[int]) -> None:
        assert set(np.flatnonzero(self._resident).tolist()) == set(resident)
        for layer, span in enumerate(self._spans):
            rank = np.where(self._resident[span], self._value[span], _NOWHERE)
            assert (rank == self._rank[span]).all()
            assert self._lowest[layer] == rank.min(initial=_NOWHERE)

    def _hide(self, row: int) -> None:
        self._rank[row] = _NOWHERE
        layer = self._layer[row]
        self._lowest[layer] = self._rank[self._spans[layer]].min()

    def _rank_layer(self, layer: int) -> None:
        span = self._spans[layer]
        if span.start == span.stop:
            return
        rank = self._rank[span]
        rank[:] = np.where(self._resident[span], self._value[span], _NOWHERE)
        self._lowest[layer] = rank.min()


def _faded(sums: Ints, factor_q24: int) -> Ints:
    """`sums * factor_q24 >> 24` in two parts: the whole product of a long half-life overflows."""
    low = sums & ((1 << KEEP_BITS) - 1)
    faded: Ints = (sums >> KEEP_BITS) * factor_q24 + ((low * factor_q24) >> KEEP_BITS)
    return faded


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

    def values(self, rows: Sequence[int]) -> list[int]:
        return [0] * len(rows)

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
