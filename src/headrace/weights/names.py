"""From the names and layouts of published files to our own, as data. No torch.

A layout never moves bytes: it re-reads the stored tensor as one or more strided views. Patterns
hold `{layer}` and `{expert}`; number formats play no part here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from enum import Enum
from math import prod


@dataclass(frozen=True, slots=True)
class View:
    """A strided reading of a stored tensor, in elements from its first one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0

    @classmethod
    def dense(cls, shape: tuple[int, ...]) -> View:
        strides, step = [], 1
        for n in reversed(shape):
            strides.append(step)
            step *= max(n, 1)
        return cls(shape, tuple(reversed(strides)))

    @property
    def rows_in_place(self) -> bool:
        """True where the last axis is contiguous: kernels read such rows where they lie."""
        return not self.shape or self.shape[-1] == 1 or self.strides[-1] == 1

    def slice(self, axis: int, begin: int, count: int, step: int) -> View:
        shape, strides = list(self.shape), list(self.strides)
        start = self.start + begin * strides[axis]
        shape[axis], strides[axis] = count, strides[axis] * step
        return View(tuple(shape), tuple(strides), start)


class Layout(Enum):
    """The closed list of ways in which a stored tensor differs from what we compute with."""

    TRANSPOSE = "swap the last two axes: [.., in, out] -> [.., out, in]"
    HALVES = "rows of [.., 2N, K]: the first N, the last N"
    EVEN_ODD = "rows of [.., 2N, K]: the even ones, the odd ones"
    EVEN_ODD_LAST = "[.., 2N]: the even elements, the odd ones"
    ONE_ROW = "[K] or [1, K] -> [1, K]"
    DROP_MIDDLE = "[N, 1, K] -> [N, K]"
    DROP_FIRST = "[1, K] -> [K]"
    FLATTEN = "[.., K] -> [N], all elements in order"
    STACKED = "matrices [E, N, K] -> their rows [E * N, K]"


def _transpose(v: View) -> tuple[View, ...]:
    s, t = v.shape, v.strides
    return (View((*s[:-2], s[-1], s[-2]), (*t[:-2], t[-1], t[-2]), v.start),)


def _halves(v: View) -> tuple[View, ...]:
    n = v.shape[-2] // 2
    return v.slice(-2, 0, n, 1), v.slice(-2, n, n, 1)


def _every_other(axis: int) -> Callable[[View], tuple[View, ...]]:
    def split(v: View) -> tuple[View, ...]:
        n = v.shape[axis] // 2
        return v.slice(axis, 0, n, 2), v.slice(axis, 1, n, 2)

    return split


def _one_row(v: View) -> tuple[View, ...]:
    return (v,) if len(v.shape) > 1 else (View((1, *v.shape), (v.shape[0], *v.strides), v.start),)


def _drop_middle(v: View) -> tuple[View, ...]:
    return (View((v.shape[0], v.shape[2]), (v.strides[0], v.strides[2]), v.start),)


def _drop_first(v: View) -> tuple[View, ...]:
    return (View(v.shape[1:], v.strides[1:], v.start),)


def _flatten(v: View) -> tuple[View, ...]:
    assert v == View(v.shape, View.dense(v.shape).strides, v.start), "no part of a tensor"
    return (View((prod(v.shape),), (1,), v.start),)


def _stacked(v: View) -> tuple[View, ...]:
    return (View((prod(v.shape[:-1]), v.shape[-1]), v.strides[-2:], v.start),)


_LAYOUTS: dict[Layout, tuple[int, Callable[[View], tuple[View, ...]]]] = {
    Layout.TRANSPOSE: (2, _transpose),
    Layout.HALVES: (2, _halves),
    Layout.EVEN_ODD: (2, _every_other(-2)),
    Layout.EVEN_ODD_LAST: (1, _every_other(-1)),
    Layout.ONE_ROW: (1, _one_row),
    Layout.DROP_MIDDLE: (3, _drop_middle),
    Layout.DROP_FIRST: (2, _drop_first),
    Layout.FLATTEN: (1, _flatten),
    Layout.STACKED: (3, _stacked),
}


def views_of(shape: tuple[int, ...], layouts: Iterable[Layout]) -> tuple[View, ...] | None:
    """All views of a stored shape after these layouts; None where the shape has too few axes."""
    views: tuple[View, ...] = (View.dense(shape),)
    for layout in layouts:
        axes, apply = _LAYOUTS[layout]
        if any(len(v.shape) < axes for v in views):
            return None
        views = tuple(out for v in views for out in apply(v))
    return views


@dataclass(frozen=True, slots=True)
class Rule:
    """Stored tensors that match `stored` become `names`, one per view of `layouts`."""

    stored: str
    names: tuple[str, ...]
    layouts: tuple[Layout, ...] = ()


def rule(stored: str, *names: str, layouts: tuple[Layout, ...] = ()) -> Rule:
    """Short for a row of a table of names."""
    return Rule(stored, names, layouts)


@dataclass(frozen=True, slots=True)
class Placed:
    """What a stored tensor is to us: canonical names, and the layouts that lead to them.

    `expert` is set where the file stores experts one by one: the tensor is that slice of the named
    one.
    """

    names: tuple[str, ...]
    layouts: tuple[Layout, ...]
    expert: int | None = None


class NameMap:
    """Rules of a family. `prefixes` may stand before every stored name; names that start with one
    of `skipped` are known and not needed.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        *,
        prefixes: tuple[str, ...] = (),
        skipped: tuple[str, ...] = (),
    ) -> None:
        self._skipped = skipped
        self._prefixes = tuple(sorted((*prefixes, ""), key=len, reverse=True))
        self._exact: dict[str, Rule] = {}
        self._patterns: list[tuple[re.Pattern[str], Rule]] = []
        for r in rules:
            if "{" in r.stored:
                text = re.escape(r.stored)
                for field in ("layer", "expert"):
                    text = text.replace(rf"\{{{field}\}}", rf"(?P<{field}>\d+)")
                self._patterns.append((re.compile(text), r))
            else:
                self._exact[r.stored] = r

    def without(self, skipped: Iterable[str]) -> NameMap:
        """The same, but names that start with one of these, behind a prefix, are skipped too."""
        other = copy(self)
        more = (prefix + name for prefix in self._prefixes for name in skipped)
        other._skipped = (*self._skipped, *more)
        return other

    def skips(self, stored: str) -> bool:
        return stored.startswith(self._skipped) if self._skipped else False

    def place(self, stored: str) -> Placed | None:
        """What this tensor is, or None where no rule knows it."""
        for prefix in self._prefixes:
            if not stored.startswith(prefix):
                continue
            name = stored[len(prefix) :]
            if name in self._exact:
                found = self._exact[name]
                return Placed(found.names, found.layouts)
            for pattern, found in self._patterns:
                match = pattern.fullmatch(name)
                if match:
                    groups = match.groupdict()
                    expert = int(groups["expert"]) if "expert" in groups else None
                    named = tuple(n.format(**groups) for n in found.names)
                    return Placed(named, found.layouts, expert)
        return None


def canonical_names(names: Iterable[str]) -> NameMap:
    """For files whose tensors have our own names already; experts may lie one by one, as
    layers.3.experts.17.gate.
    """
    rules = []
    for name in names:
        rules.append(rule(name, name))
        layer, experts, kind = name.partition(".experts.")
        if experts:
            rules.append(rule(f"{layer}.experts.{{expert}}.{kind}", name))
    return NameMap(rules)
