"""`headrace doctor`: what this machine offers, and what stands in the way."""

from __future__ import annotations

import json
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.cli import options
from headrace.cli.environment import home
from headrace.cli.serve import HOST, PORT

GIB = 1 << 30
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LOW_RAM_GIB, LOW_DISK_GIB = 4, 5


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    fix: str = ""


def doctor(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to look at.")] = PORT,
    as_json: options.Json = False,
) -> None:
    """Check this machine and this installation. Exits 1 if something must be mended."""
    findings = list(examine(port))
    failed = any(finding.state == "fail" for finding in findings)
    if as_json:
        report = {"ok": not failed, "checks": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
    else:
        _show(findings)
    if failed:
        raise typer.Exit(1)


def examine(port: int) -> Iterator[Finding]:
    """All checks, in the order in which they build on each other."""
    yield _python()
    yield _torch()
    yield from _native_and_machine()
    yield _huge_pages()
    yield _disk()
    yield _models()
    yield _port(port)


def _python() -> Finding:
    found = f"{platform.python_version()} ({platform.system()}, {platform.machine()})"
    good = sys.version_info >= (3, 11)
    return Finding("python", "ok" if good else "fail", found, "" if good else "use 3.11 or newer")


def _torch() -> Finding:
    # Its metadata is enough: importing it takes seconds.
    try:
        return Finding("torch", "ok", version("torch"))
    except PackageNotFoundError:
        return Finding("torch", "fail", "not installed", "pip install torch")


def _native_and_machine() -> Iterator[Finding]:
    try:
        from headrace import _native  # noqa: PLC0415 may be missing: then this says so
    except ImportError as error:
        yield Finding("native extension", "fail", str(error), "build it: pip install -e .")
        return
    from headrace.planning.machine import Machine  # noqa: PLC0415 start-up time

    isas = _native.isas()
    features = sorted(name for name, there in _native.cpu_features().items() if there)
    yield Finding("native extension", "ok", f"kernels for {', '.join(isas)}")
    machine = Machine.probe(isas)
    slow = isas == ["scalar"]
    yield Finding(
        "cpu",
        "warn" if slow else "ok",
        f"{machine.name}: {machine.physical_cores} cores, {machine.cores} threads;"
        f" {', '.join(features) or 'no vector units known'}",
        "this CPU has no vector kernels here: expect it to be slow" if slow else "",
    )
    free = machine.ram_free / GIB
    yield Finding(
        "memory",
        "ok" if free >= LOW_RAM_GIB else "warn",
        f"{free:.1f} GiB free of {machine.ram_total / GIB:.1f}",
        "" if free >= LOW_RAM_GIB else "only small models will fit",
    )


def _huge_pages() -> Finding:
    try:
        line = HUGE_PAGES.read_text().strip()
    except OSError:
        return Finding("huge pages", "warn", "not known on this system")
    chosen = line.partition("[")[2].partition("]")[0]
    if chosen in ("always", "madvise"):
        return Finding("huge pages", "ok", chosen)
    return Finding(
        "huge pages", "warn", line, f"as root: echo madvise > {HUGE_PAGES}, for faster memory reads"
    )


def _disk() -> Finding:
    folder = home()
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free / GIB
    good = free >= LOW_DISK_GIB
    return Finding(
        "disk",
        "ok" if good else "warn",
        f"{free:.1f} GiB free at {folder}",
        "" if good else "make room, or point HEADRACE_HOME to another disk",
    )


def _models() -> Finding:
    folder = home()
    marks = (mark for name in ("config.json", "*.gguf") for mark in folder.glob(f"**/{name}"))
    found = sorted({str(mark.parent.relative_to(folder)) for mark in marks})
    return Finding(
        "models",
        "ok",
        ", ".join(found) if found else "none yet",
        "" if found else "`headrace run demo hello` builds the default one",
    )


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return Finding("port", "warn", f"{port}: {error.strerror}", "serve with another --port")
    return Finding("port", "ok", f"{port} is free")


def _show(findings: list[Finding]) -> None:
    from rich.console import Console  # noqa: PLC0415 start-up time
    from rich.table import Table  # noqa: PLC0415 start-up time
    from rich.text import Text  # noqa: PLC0415 start-up time

    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        table.add_row(
            Text(finding.state, style=colours[finding.state]),
            Text(finding.name),
            Text(finding.found + (f"\n{finding.fix}" if finding.fix else "")),
        )
    Console().print(table)
