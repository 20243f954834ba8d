"""The CPU as a device: it starts what it is told to, obeys HEADRACE_ISA, and closes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from headrace import _native
from headrace.device.cpu import CpuDevice, isa_cap
from headrace.errors import ConfigError, DeviceError
from headrace.ops.choose import ops_for


def test_threads_name_and_memory() -> None:
    with CpuDevice(2) as device:
        assert device.pool.threads == 2
        assert device.kind == "cpu"
        assert device.name.startswith("cpu, 2 threads, ")
        assert device.empty([2, 3]).shape == (2, 3)
        assert device.zeros([4], torch.int32).tolist() == [0] * 4
    device.close()  # twice is harmless


def threads_now() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_closing_ends_the_workers() -> None:
    before = threads_now()
    device = CpuDevice(2)
    assert threads_now() > before
    device.close()
    assert threads_now() == before
    assert threading.active_count() >= 1


@pytest.mark.parametrize("isa", _native.isas())
def test_the_environment_caps_the_instruction_set(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ISA", isa.upper())
    with CpuDevice(1) as device:
        assert device.pool.isa == isa


def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ISA", "mmx")
    with pytest.raises(ConfigError, match="HEADRACE_ISA='mmx'; expected one of scalar"):
        isa_cap()
    with pytest.raises(ConfigError):
        CpuDevice(1)


def test_absurd_threads_are_a_device_error() -> None:
    with pytest.raises(DeviceError, match="set fewer threads"):
        CpuDevice(-3)


class NoDevice:
    kind = name = "abacus"

    def empty(self, shape: object, dtype: object = None) -> torch.Tensor:
        raise AssertionError

    zeros = empty

    def host(self, nbytes: int) -> torch.Tensor:
        raise AssertionError

    def close(self) -> None: ...


def test_a_kind_without_ops_is_named() -> None:
    with pytest.raises(DeviceError, match="'abacus'; expected cpu"):
        ops_for(NoDevice())  # type: ignore[arg-type]
