"""Which table of ops a device computes with."""

from __future__ import annotations

from headrace.device.cpu import CpuDevice
from headrace.device.device import Device
from headrace.device.emulated import EmulatedDevice
from headrace.errors import DeviceError
from headrace.ops.charged import charged
from headrace.ops.native import native_ops
from headrace.ops.table import Ops


def ops_for(device: Device) -> Ops:
    """Every op in its fastest form for `device`. Raises DeviceError for a kind without a table."""
    if isinstance(device, CpuDevice):
        return native_ops(device.pool, exact=device.exact)
    if isinstance(device, EmulatedDevice):
        ops = native_ops(device.pool, exact=device.exact)
        return ops if device.clock is None else charged(ops, device.clock)
    raise DeviceError(f"no ops for a device of kind {device.kind!r}", expected="cpu, emulated")
