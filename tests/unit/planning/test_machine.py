"""Machine.probe over made-up /proc and /sys trees: limits of any cgroup above the process count."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from headrace.planning.machine import Machine

GIB = 1 << 30


def tree(root: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_this_machine() -> None:
    machine = Machine.probe(("scalar", "avx2"))
    assert 1 <= machine.physical_cores <= machine.cores <= (os.cpu_count() or 1)
    assert 0 < machine.ram_free <= machine.ram_total <= psutil.virtual_memory().total
    assert machine.name
    assert machine.isas == ("scalar", "avx2")


def test_nothing_readable_means_no_limit(tmp_path: Path) -> None:
    machine = Machine.probe(root=tmp_path)
    assert machine.ram_total == psutil.virtual_memory().total
    assert machine.cores >= machine.physical_cores >= 1


def test_cgroup_v2_limits_of_every_level(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner",
            "sys/fs/cgroup/outer/memory.max": 2 * GIB,
            "sys/fs/cgroup/outer/memory.current": GIB,
            "sys/fs/cgroup/outer/memory.stat": f"anon 5\ninactive_file {GIB // 4}",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000",
            "sys/fs/cgroup/outer/inner/memory.max": "max",
            "sys/fs/cgroup/outer/inner/memory.current": GIB // 2,
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
        },
    )
    machine = Machine.probe(root=tmp_path)
    assert machine.ram_total == 2 * GIB
    assert machine.ram_free == GIB + GIB // 4
    assert (machine.cores, machine.physical_cores) == (1, 1)


def test_cgroup_v1(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 5,
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": GIB,
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": GIB // 2,
            "sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 4096",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": 100000,
        },
    )
    machine = Machine.probe(root=tmp_path)
    assert machine.ram_total == GIB
    assert machine.ram_free == GIB // 2 + 4096
    assert machine.cores == Machine.probe(root=tmp_path / "none").cores
    tree(tmp_path, {"sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": 100000})
    assert Machine.probe(root=tmp_path).cores == 1


def test_a_container_sees_its_group_at_the_mount(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../somewhere/else",
            "sys/fs/cgroup/memory.max": GIB,
            "sys/fs/cgroup/memory.current": 0,
        },
    )
    assert Machine.probe(root=tmp_path).ram_free == min(GIB, psutil.virtual_memory().total)


def test_more_in_use_than_the_limit_is_nothing_free(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": 1000,
            "sys/fs/cgroup/memory.current": 2000,
        },
    )
    assert Machine.probe(root=tmp_path).ram_free == 0


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU masks here")
def test_threads_of_a_core_count_once(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    topology = "sys/devices/system/cpu/cpu{}/topology/{}"
    for cpu in cpus:
        tree(tmp_path, {topology.format(cpu, "physical_package_id"): 0})
        tree(tmp_path, {topology.format(cpu, "core_id"): 7})
    machine = Machine.probe(root=tmp_path)
    assert (machine.cores, machine.physical_cores) == (len(cpus), 1)


def test_cpu_name(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/cpuinfo": "processor : 0\nmodel name\t: Water Wheel 9"})
    assert Machine.probe(root=tmp_path).name == "Water Wheel 9"
