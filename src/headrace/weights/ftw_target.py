"""The folder that a conversion writes: whether it makes sense, has room, and what is copied into
it. No torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace import _native
from headrace.errors import CapacityError, ConfigError
from headrace.weights.checkpoint import Checkpoint
from headrace.weights.ftw import JOURNAL, FtwCheckpoint
from headrace.weights.ftw_index import INDEX, Shard, SideFile, plain_name

SPARE_BYTES = 64 << 20  # left free on the disk
MAX_SIDE_BYTES = 64 << 20
SIDE_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".md")


def source_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Who the source is, by its config, its files and its tensors."""
    stored = sorted(checkpoint.tensors.values(), key=lambda t: t.name)
    table = "".join(f"{t.name} {t.tag} {list(t.shape)} {t.nbytes}\n" for t in stored)
    config = json.dumps(checkpoint.config, sort_keys=True)
    return {
        "name": checkpoint.path.resolve().name,
        "files": [{"file": f.name, "bytes": f.stat().st_size} for f in _files(checkpoint)],
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "tensors_sha256": hashlib.sha256(table.encode()).hexdigest(),
    }


def times_of(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """When the source's files were written last: a source that changes is not gone on with."""
    return [(f.name, f.stat().st_mtime_ns) for f in _files(checkpoint)]


def _files(checkpoint: Checkpoint) -> list[Path]:
    return sorted({t.file for t in checkpoint.tensors.values()})


def check_target(checkpoint: Checkpoint, target: Path) -> None:
    """Raises ConfigError for a destination that makes no sense."""
    if isinstance(checkpoint, FtwCheckpoint):
        raise ConfigError(
            f"{checkpoint.path} is an FTW folder already", fix="copy it: it works on any machine"
        )
    source, at = checkpoint.path.resolve(), target.resolve()
    if at == source or at in source.parents or (source.is_dir() and source in at.parents):
        raise ConfigError(
            f"{target} holds the source, or lies in it", expected="a new folder beside it"
        )
    if not at.parent.is_dir():
        raise ConfigError(f"there is no folder {at.parent}", fix="make it, or check the path")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target} is a file", expected="a folder that does not exist yet")
    if not target.is_dir():
        return
    if not any((target / name).is_file() for name in (INDEX, JOURNAL)) and any(target.iterdir()):
        raise ConfigError(
            f"{target} is not empty and holds no conversion",
            expected="a new or empty folder, or an unfinished conversion",
        )


def torn_shards(target: Path, shards: tuple[Shard, ...]) -> frozenset[int]:
    """Shards that are not there at their full size: what was written to them is lost."""

    def whole(file: Path, nbytes: int) -> bool:
        try:
            said = file.lstat()
        except OSError:
            return False
        return stat.S_ISREG(said.st_mode) and said.st_size == nbytes

    return frozenset(n for n, s in enumerate(shards) if not whole(target / s.file, s.nbytes))


def reserve(target: Path, shards: tuple[Shard, ...]) -> None:
    """All shards at their full size, so that the disk cannot fill up on the way.

    Raises CapacityError saying what is missing.
    """
    sizes = [(target / s.file, s.nbytes) for s in shards]
    have = sum(f.stat().st_blocks * 512 for f, _ in sizes if f.is_file())
    need = sum(nbytes for _, nbytes in sizes)
    free = shutil.disk_usage(target).free
    if free + have < need + SPARE_BYTES:
        raise CapacityError(
            f"{_size(free + have)} free at {target}",
            expected=f"{_size(need + SPARE_BYTES)} for the converted model",
            fix="free some disk space, or choose a destination on another disk",
        )
    for file, nbytes in sizes:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            if nbytes:
                with contextlib.suppress(OSError):  # not every file system can
                    os.posix_fallocate(fd, 0, nbytes)
            os.ftruncate(fd, nbytes)
        finally:
            os.close(fd)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 10e9 else f"{nbytes / 1e6:.0f} MB"


def write_side_files(
    checkpoint: Checkpoint, target: Path, more: Mapping[str, bytes]
) -> Mapping[str, SideFile]:
    """Config, tokenizer, template and all small texts beside the weights, and `more`."""
    wanted = dict(more)
    for file in _side_files(checkpoint):
        wanted[file.name] = file.read_bytes()
    if "config.json" not in wanted:
        wanted["config.json"] = json.dumps(dict(checkpoint.config), indent=1).encode()
    for name, data in wanted.items():
        (target / name).write_bytes(data)
    return {name: SideFile(len(data), crc32c(data)) for name, data in sorted(wanted.items())}


def crc32c(data: bytes) -> int:
    """Of bytes that Python holds."""
    held = np.frombuffer(data, np.uint8)
    return _native.crc32c(held.ctypes.data, held.nbytes)


def _side_files(checkpoint: Checkpoint) -> Iterator[Path]:
    if not checkpoint.path.is_dir():
        return
    for file in sorted(checkpoint.path.iterdir()):
        small = file.is_file() and file.stat().st_size <= MAX_SIDE_BYTES
        index = file.name.endswith(".safetensors.index.json")
        if small and not index and file.suffix in SIDE_SUFFIXES and plain_name(file.name):
            yield file
