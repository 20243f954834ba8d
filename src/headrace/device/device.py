"""What a device is to everything above it. Streams, doorbells and graphs: see `emulated`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from headrace.device.memory import ElasticRange


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

    def host(self, nbytes: int) -> Tensor:
        """Host memory that the device can reach, uint8 [nbytes]."""
        ...

    def close(self) -> None:
        """Stops threads and returns memory; the device is not used again."""
        ...
