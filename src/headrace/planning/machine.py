"""What this process may use of its machine: cgroup limits and CPU masks count. No torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.planning.profile import ProfileRow

_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number just below 2^63


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device beside the CPU, with memory of its own. Bytes, bytes/s, operations/s."""

    name: str
    memory_total: int
    memory_free: int
    kernels: float  # bytes/s at which its kernels read its own memory
    flops: float  # of matrix products in the weights' format
    pinning: bool = True  # host memory can be pinned, so that copies run beside the kernels


@dataclass(frozen=True, slots=True)
class Machine:
    """A probed or declared machine; bytes and counts."""

    name: str  # of the CPU
    cores: int  # logical CPUs that this process may use
    physical_cores: int
    ram_total: int
    ram_free: int  # available without swapping, page cache included
    isas: tuple[str, ...] = ()  # kernel sets that run here, slowest first
    device: Accelerator | None = None
    rates: ProfileRow | None = None  # declared: link to the device and host memory
    disk: float | None = None  # bytes/s at which rows come from it, where that is known

    @classmethod
    def probe(cls, isas: Sequence[str] = (), root: Path = Path("/")) -> Machine:
        """This machine now. `isas`: from the native extension, which planning does not load."""
        cpus = _allowed_cpus()
        quota = _cpu_quota(root)
        total, free = _memory(root)
        return cls(
            name=_cpu_name(root),
            cores=min(len(cpus), quota),
            physical_cores=min(_physical(cpus, root), quota),
            ram_total=total,
            ram_free=free,
            isas=tuple(isas),
        )


def _allowed_cpus() -> list[int]:
    if platform.system() == "Linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _physical(cpus: Sequence[int], root: Path) -> int:
    """Distinct (package, core) pairs among these CPUs; SMT siblings count once."""
    pairs = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        package = _int(topology / "physical_package_id")
        core = _int(topology / "core_id")
        if package is None or core is None:
            return min(len(cpus), psutil.cpu_count(logical=False) or len(cpus))
        pairs.add((package, core))
    return len(pairs)


def _cpu_name(root: Path) -> str:
    for line in _text(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_quota(root: Path) -> int:
    """Whole CPUs of the tightest cgroup, at least one; a huge number without a limit."""
    quota = float(1 << 20)
    for folder in _cgroup2(root):
        most, _, period = _text(folder / "cpu.max").partition(" ")
        if most.strip().isdigit() and period.strip().isdigit():
            quota = min(quota, int(most) / int(period))
    for folder in _cgroup1(root, "cpu"):
        most1, period1 = _int(folder / "cpu.cfs_quota_us"), _int(folder / "cpu.cfs_period_us")
        if most1 is not None and most1 > 0 and period1:
            quota = min(quota, most1 / period1)
    return max(1, int(quota))


def _memory(root: Path) -> tuple[int, int]:
    """(total, free) bytes: of the system, or of the tightest cgroup around this process."""
    system = psutil.virtual_memory()
    total, free = int(system.total), int(system.available)
    for folder in _cgroup2(root):
        limit, used = _int(folder / "memory.max"), _int(folder / "memory.current")
        total, free = _tighten(total, free, limit, used, folder, "inactive_file")
    for folder in _cgroup1(root, "memory"):
        limit = _int(folder / "memory.limit_in_bytes")
        used = _int(folder / "memory.usage_in_bytes")
        total, free = _tighten(total, free, limit, used, folder, "total_inactive_file")
    return total, free


def _tighten(
    total: int, free: int, limit: int | None, used: int | None, folder: Path, cached: str
) -> tuple[int, int]:
    if limit is None or used is None or limit >= _UNLIMITED:
        return total, free
    # Pages of files that nobody touched lately are given back before anything else.
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == cached and value.strip().isdigit():
            used = max(0, used - int(value))
    return min(total, limit), min(free, max(0, limit - used))


def _cgroup2(root: Path) -> Iterator[Path]:
    mount = root / "sys/fs/cgroup"
    return _chain(root, mount, lambda controllers: controllers == "")


def _cgroup1(root: Path, controller: str) -> Iterator[Path]:
    mount = root / "sys/fs/cgroup" / controller
    return _chain(root, mount, lambda controllers: controller in controllers.split(","))


def _chain(root: Path, mount: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """The cgroup of this process and all above it, up to the mount; limits of each apply."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not wanted(controllers):
            continue
        folder = mount / path.lstrip("/")
        while folder != mount and mount in folder.parents:
            yield folder
            folder = folder.parent
        yield mount


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _int(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None
