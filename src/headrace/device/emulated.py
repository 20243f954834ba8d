"""A GPU made of RAM: memory of its own with a budget, a link with a set bandwidth, a host pool.

In real time the link is a thread that copies no faster than told, so that link and cores truly
contend for this machine's memory. With a clock everything is computed as well, but time is charged.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from headrace import _native
from headrace.device.clock import Observed, VirtualClock
from headrace.device.cpu import isa_cap
from headrace.device.device import Mark
from headrace.device.memory import DeviceMemory, ElasticRange
from headrace.device.tape import CpuGraph
from headrace.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Emulation:
    """What is emulated. Bytes, bytes/s, threads."""

    memory: int
    link: float = 0.0  # 0 = as fast as one thread copies
    device_threads: int = 1
    host_threads: int = 1
    exact: bool = False
    poison: bool = False  # a slot that is about to be filled reads as NaN
    staged: bool = False  # host memory cannot be pinned: copies go through a buffer


class CopyStream:
    """The link: copies queued here run beside the device, in order, until somebody waits."""

    def __init__(self, link: _native.Link, pool: _native.Pool, clock: VirtualClock | None) -> None:
        self._link, self._pool, self._clock = link, pool, clock

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
        """Row experts[i] into slot slots[i] of `to` for i < count: int32, on the device."""
        self._link.copy_rows(
            self._pool,
            spans,
            experts_E.data_ptr(),
            slots_E.data_ptr(),
            count_1.data_ptr(),
            to.data_ptr(),
            slot_bytes,
            poison,
        )
        if self._clock:
            rows = int(count_1)
            self._clock.transfer(rows * spans.row_nbytes, rows)

    def mark(self) -> Mark:
        """Everything queued so far; for `wait_for`."""
        return Mark(self._link.mark(), self._clock.marked if self._clock else 0)

    def wait(self) -> None:
        """The device waits for everything queued."""
        self._link.wait(self._pool)
        if self._clock:
            self._clock.wait_link()

    def wait_for(self, mark: Mark) -> None:
        """The device waits for what was queued before the mark."""
        self._link.wait_for(mark.link)
        if self._clock:
            self._clock.wait_link(mark.clock)

    def observations(self) -> list[Observed]:
        """(rows, nanoseconds) of each `copy_rows` since the last call."""
        seen = self._link.observations()
        if self._clock:
            seen, self._clock.link.log = self._clock.link.log, []
        return seen


class HostStream:
    """The host pool behind its doorbell."""

    def __init__(
        self, service: _native.HostService, pool: _native.Pool, clock: VirtualClock | None
    ) -> None:
        self._service, self._pool, self._clock = service, pool, clock

    def alert(self) -> None:
        """Work is about to come: wake up."""
        self._service.alert(self._pool)

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
        assert x_TD.is_contiguous()
        assert ids_TX.is_contiguous()
        assert parts_TXD.is_contiguous()
        tokens, top_k = ids_TX.shape
        self._service.ring(
            self._pool,
            x_TD.data_ptr(),
            tokens,
            ids_TX.data_ptr(),
            top_k,
            layer,
            parts_TXD.data_ptr(),
            exact,
        )
        if self._clock:
            rows = len(set(ids_TX.flatten().tolist()) - {-1})
            self._clock.host_work(rows * layer.row_nbytes, rows)

    def wait(self) -> None:
        """The device waits until the parts are written."""
        self._service.wait(self._pool)
        if self._clock:
            self._clock.wait_host()

    def observations(self) -> list[Observed]:
        """(experts computed, nanoseconds from ring to done) of each ring since the last call."""
        seen = self._service.observations()
        if self._clock:
            seen, self._clock.host.log = self._clock.host.log, []
        return seen


class EmulatedGraph(CpuGraph):
    """A captured step under the rules of a real one: while it is captured nothing is read by the
    host and no device memory is made, and it is not replayed after memory has moved.
    """

    def __init__(self, device: EmulatedDevice) -> None:
        super().__init__(device.pool, strict=True)
        self._device, self._epoch = device, device.epoch

    def replay(self) -> None:
        """Raises DeviceError where memory has moved since the capture."""
        if self._epoch != self._device.epoch:
            raise DeviceError("a captured step names memory that has moved", expected="a new one")
        super().replay()

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._device.capturing = True
        try:
            with super().recording():
                yield
        finally:
            self._device.capturing = False


class EmulatedDevice:
    """Memory, kernels, link and host pool of a machine with a GPU, on one without."""

    kind = "emulated"

    def __init__(self, emulation: Emulation, clock: VirtualClock | None = None) -> None:
        self.emulation = emulation
        self.exact = emulation.exact
        self.poison = emulation.poison
        self.clock = clock
        self.memory = DeviceMemory(emulation.memory)
        self.capturing = False
        self.epoch = 0
        isa = isa_cap()
        try:
            self.pool = _native.Pool(emulation.device_threads, pin=False, isa=isa)
            self._host_pool = _native.Pool(emulation.host_threads, pin=False, isa=isa)
            first, last = _apart(emulation.host_threads)
            self._link = _native.Link(
                0.0 if clock else emulation.link, cpu=first, staged=emulation.staged
            )
            self._service = _native.HostService(self._host_pool, cpu=last)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(
                f"the emulated device did not start: {error}",
                expected="threads that this system allows",
                fix="set fewer threads",
            ) from error
        self.copies = CopyStream(self._link, self.pool, clock)
        self.host_pool = HostStream(self._service, self.pool, clock)

    @property
    def name(self) -> str:
        e = self.emulation
        how = "virtual clock" if self.clock else "real time"
        return (
            f"emulated, {e.memory >> 20} MiB, {e.device_threads} device and {e.host_threads} host "
            f"threads, {self.pool.isa}, {how}"
        )

    @property
    def link_rate(self) -> float:
        """Bytes/s of the link, 0 = unthrottled; may be set while it runs."""
        return self.clock.row.link if self.clock else self._link.rate

    @link_rate.setter
    def link_rate(self, rate: float) -> None:
        assert self.clock is None, "the clock has a row of its own"
        self._link.rate = rate

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Poisoned. Raises CapacityError."""
        self._no_capture("an allocation")
        return self.memory.tensor(shape, dtype)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return self.empty(shape, dtype).zero_()

    def elastic(self, reserved: int) -> ElasticRange:
        """Device memory that can grow up to `reserved` bytes without moving."""
        self._no_capture("an allocation")
        return self.memory.range(reserved, poison=True)

    def graph(self) -> EmulatedGraph | None:
        """To record a step into; None with a clock, which a replay would not charge."""
        return None if self.clock else EmulatedGraph(self)

    def crossed(self, nbytes: int, seconds: float) -> None:
        """So many bytes went over the link in so long, outside its queue: what its rate asks for
        beyond that is waited for."""
        rate = self.link_rate
        missing_s = nbytes / rate - seconds if rate > 0 else 0.0
        if self.clock:
            self.clock.now += nbytes / rate
        elif missing_s > 0:
            time.sleep(missing_s)

    def settle(self) -> None:
        """Returns when link and host pool are idle, whatever has become of their work."""
        for idle in (self.host_pool.wait, self.copies.wait):
            with suppress(Exception):  # of a step that has failed already
                idle()

    def moved(self) -> None:
        """Memory that a captured step may name is somewhere else now."""
        self.epoch += 1

    def close(self) -> None:
        """Stops threads and gives elastic memory back. Calling it twice is harmless."""
        self._service.close()
        self._link.close()
        self._host_pool.close()
        self.pool.close()
        self.memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _no_capture(self, what: str) -> None:
        if self.capturing:
            raise DeviceError(f"{what} while a step is captured", expected="memory made before")


def _apart(host_threads: int) -> tuple[int, int]:
    """CPUs of the link and of a host pool of one thread, so that they do not meet; -1 = any."""
    cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    return (cpus[0], cpus[-1]) if host_threads == 1 and len(cpus) > 1 else (-1, -1)
