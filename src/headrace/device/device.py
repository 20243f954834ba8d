"""What a device is to everything above it: memory, and where it has memory of its own, a link, a
host pool beside it and captured steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from headrace import _native
from headrace.device.clock import Observed
from headrace.device.memory import DeviceMemory, ElasticRange


class Device(Protocol):
    """Where a model computes. `kind` selects the table of ops: cpu, cuda, emulated."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str:
        """For people: the processor and how much of it is used."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Uninitialised device memory."""
        ...

    def zeros(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Device memory of zeros."""
        ...

    def elastic(self, reserved: int) -> ElasticRange:
        """Memory that can grow up to `reserved` bytes without moving; nothing is committed yet.

        Raises CapacityError where the system refuses the address space.
        """
        ...

    def graph(self) -> Graph | None:
        """An empty one, to record a step into; None where nothing can be captured."""
        ...

    def close(self) -> None:
        """Stops threads and returns memory; the device is not used again."""
        ...


class Graph(Protocol):
    """A captured step."""

    @property
    def foreign(self) -> str:
        """The operation that keeps this capture from being replayed; "" if there is none."""
        ...

    def recording(self) -> AbstractContextManager[None]:
        """The step is computed as ever, and captured."""
        ...

    def replay(self) -> None:
        """Everything again, with inputs and results where they were."""
        ...


class Mark(NamedTuple):
    """A point in the queue of copies, as the link and a clock beside it count."""

    link: int
    clock: int


class Copies(Protocol):
    """The link: copies queued here run beside the device, in order, until somebody waits."""

    def copy_rows(
        self,
        spans: _native.RowSpans,
        experts_E: Tensor,
        slots_E: Tensor,
        count_1: Tensor,
        to: Tensor,
        slot_bytes: int,
        *,
        poison: bool = False,
    ) -> None:
        """Row experts[i] into slot slots[i] of `to` for i < count: int32, on the device.

        `poison`: the slots read as NaN until their rows are there.
        """
        ...

    def mark(self) -> Mark:
        """Everything queued so far; for `wait_for`."""
        ...

    def wait(self) -> None:
        """The device waits for everything queued."""
        ...

    def wait_for(self, mark: Mark) -> None:
        """The device waits for what was queued before the mark."""
        ...

    def observations(self) -> list[Observed]:
        """(rows, nanoseconds) of each `copy_rows` since the last call."""
        ...


class HostPool(Protocol):
    """The CPU's workers behind a doorbell."""

    def alert(self) -> None:
        """Work is about to come: wake up."""
        ...

    def ring(
        self,
        x_TD: Tensor,
        ids_TX: Tensor,
        layer: _native.ExpertLayer,
        parts_TXD: Tensor,
        *,
        exact: bool,
    ) -> None:
        """parts[t, k] = expert ids[t, k] of x[t] where the id is not negative; returns at once."""
        ...

    def wait(self) -> None:
        """The device waits until the parts are written."""
        ...

    def observations(self) -> list[Observed]:
        """(experts computed, nanoseconds from ring to done) of each ring since the last call."""
        ...


class Accelerator(Device, Protocol):
    """A device with memory of its own."""

    @property
    def exact(self) -> bool:
        """Activations are never rounded below float32."""
        ...

    @property
    def poison(self) -> bool:
        """Slots read as NaN until they are filled, so that a missing wait shows."""
        ...

    @property
    def memory(self) -> DeviceMemory: ...
    @property
    def copies(self) -> Copies: ...
    @property
    def host_pool(self) -> HostPool: ...

    def settle(self) -> None:
        """Returns when link and host pool are idle, whatever has become of their work."""
        ...

    def moved(self) -> None:
        """Memory that a captured step may name is somewhere else now."""
        ...
