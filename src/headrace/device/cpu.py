"""The CPU as a device: its memory is host memory, and its arithmetic is the native worker pool."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from headrace import _native
from headrace.device.memory import DeviceMemory, ElasticRange
from headrace.device.tape import CpuGraph
from headrace.errors import ConfigError, DeviceError


def isa_cap() -> str:
    """HEADRACE_ISA, which caps the instruction set ("" = the best there is). Read nowhere else."""
    word = os.environ.get("HEADRACE_ISA", "").strip().lower()
    known = _native.isas()
    if word and word not in known:
        raise ConfigError(
            f"HEADRACE_ISA={word!r}", expected="one of " + ", ".join(known), fix="unset it"
        )
    return word


class CpuDevice:
    """Owns the worker pool. `exact`: activations are never rounded to bfloat16, whatever is
    faster.
    """

    kind = "cpu"

    def __init__(
        self, threads: int | None = None, isa: str | None = None, *, exact: bool = False
    ) -> None:
        """`threads` counts the caller's own; None = one per physical core. `isa`: None =
        HEADRACE_ISA.
        """
        self.exact = exact
        self._memory = DeviceMemory(1 << 62)  # the plan bounds it, not the device
        try:
            cap = isa_cap() if isa is None else isa
            self.pool = _native.Pool(threads or 0, isa=cap, rescue=True)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(
                f"the worker pool did not start: {error}",
                expected="threads that this system allows",
                fix="set fewer threads",
            ) from error

    @property
    def name(self) -> str:
        return f"cpu, {self.pool.threads} threads, {self.pool.isa}"

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def elastic(self, reserved: int) -> ElasticRange:
        """Memory that can grow up to `reserved` bytes without moving. Raises CapacityError."""
        return self._memory.range(reserved, poison=False)

    def graph(self) -> CpuGraph:
        """An empty one, to record a step into."""
        return CpuGraph(self.pool)

    def close(self) -> None:
        """Stops the workers and gives elastic memory back. Calling it twice is harmless."""
        self.pool.close()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
