"""Tensors at equal distances, alike or of a few forms: expert rows in slots, without a view of
each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from headrace.formats.format import Format
from headrace.formats.packed import Packed, Weight


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a row within a slot."""

    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    dtype: torch.dtype
    packed: tuple[Format, int, int] | None = None  # a matrix of so many rows and columns

    @property
    def nbytes(self) -> int:
        """From its first byte to its last."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.dtype.itemsize


class Lazy(Sequence[Weight]):
    """Tensors that are made when they are asked for."""

    @abstractmethod
    def entry(self, at: int) -> Weight:
        """One of them; `at`: from 0 to the last."""

    @abstractmethod
    def addresses(self) -> list[int]:
        """Of each tensor, without making it."""

    @overload
    def __getitem__(self, at: int) -> Weight: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Weight]: ...
    def __getitem__(self, at: int | slice) -> Weight | Sequence[Weight]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(at)
        return self.entry(at)


class Spread(Lazy):
    """`part` of each of `count` slots, `step` bytes apart; views are made when asked for."""

    def __init__(self, memory: Tensor, part: Part, count: int, step: int) -> None:
        self._memory, self.part, self._count, self._step = memory, part, count, step

    def __len__(self) -> int:
        return self._count

    def entry(self, at: int) -> Weight:
        part = self.part
        start = at * self._step + part.offset
        flat = self._memory[start : start + part.nbytes].view(part.dtype)
        view = flat.as_strided(part.shape, part.strides)
        return view if part.packed is None else Packed(*part.packed, view)

    def addresses(self) -> list[int]:
        first = self._memory.data_ptr() + self.part.offset
        return list(range(first, first + self._count * self._step, self._step))


class Several(Lazy):
    """Entries of several forms: `spreads` have one each, over the same slots. Entry i is slot
    `slots[i]` in the form `form_of[i]`.
    """

    def __init__(
        self, spreads: Sequence[Spread], form_of: Sequence[int], slots: Sequence[int]
    ) -> None:
        self.spreads, self.form_of, self._slots = tuple(spreads), form_of, slots

    def __len__(self) -> int:
        return len(self.form_of)

    def entry(self, at: int) -> Weight:
        return self.spreads[self.form_of[at]][self._slots[at]]

    def addresses(self) -> list[int]:
        known = [spread.addresses() for spread in self.spreads]
        return [known[form][slot] for form, slot in zip(self.form_of, self._slots, strict=True)]


def spread(
    memory: Tensor, forms: Sequence[Part], step: int, *, count: int, form_of: Sequence[int] = ()
) -> Spread | Several:
    """`count` slots as one kind of tensor. Of several `forms`: all slots in the first, then all in
    the second, and so on; or of slot i entry i alone, in the form `form_of[i]`.
    """
    spreads = [Spread(memory, part, count, step) for part in forms]
    if len(spreads) == 1:
        return spreads[0]
    if form_of:
        assert len(form_of) == count
        return Several(spreads, form_of, range(count))
    every = [form for form in range(len(forms)) for _ in range(count)]
    return Several(spreads, every, [*range(count)] * len(forms))
