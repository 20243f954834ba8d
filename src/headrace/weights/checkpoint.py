"""A published checkpoint before a byte of its weights is read: config and tensor table. No
torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import CheckpointError
from headrace.files import read_text
from headrace.formats.format import BY_TAG, LANED, Format
from headrace.formats.words import format_of
from headrace.weights.safetensors import read_table

MAX_CONFIG_BYTES = 16 << 20
PUBLISHED, GGUF, CANONICAL = "published", "gguf", "canonical"  # dialects


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies. `tag` is the file's own word for its dtype, `offset` counts from the
    file's start.
    """

    name: str
    tag: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    @property
    def format(self) -> Format:
        """Raises CheckpointError for a dtype that no codec knows."""
        known = format_of(self.tag)
        if known is None:
            raise CheckpointError(
                f"{self.file}: tensor {self.name!r} has dtype {self.tag}",
                expected="one of " + ", ".join((*BY_TAG, *LANED)),
                fix="use the float or bfloat16 release of this model",
            )
        return known


class Checkpoint(Protocol):
    """Config and tensor table of a model, whatever its files are. `dialect`: whose tensor names
    they have.
    """

    @property
    def path(self) -> Path: ...
    @property
    def dialect(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...


@dataclass(frozen=True, slots=True)
class SafetensorsCheckpoint:
    """A folder with config.json and one or more .safetensors files."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    dialect: str = PUBLISHED


def open_safetensors(path: Path) -> SafetensorsCheckpoint:
    """Reads config and headers only. Raises CheckpointError on anything missing, torn or
    malformed.
    """
    config = read_json(path / "config.json", MAX_CONFIG_BYTES)
    tensors: dict[str, StoredTensor] = {}
    for file, wanted in _files(path).items():
        table = read_table(file)
        for name in wanted if wanted is not None else table:
            if name not in table:
                raise CheckpointError(
                    f"{file}: tensor {name!r} is missing though the index places it there",
                    fix="download this file again",
                )
            if name in tensors:
                raise CheckpointError(
                    f"{file}: tensor {name!r} is also in {tensors[name].file.name}",
                    expected="every tensor once",
                    fix="remove the stale file",
                )
            tag, shape, offset, nbytes = table[name]
            tensors[name] = StoredTensor(name, tag, shape, file, offset, nbytes)
    return SafetensorsCheckpoint(path, config, tensors)


def read_json(file: Path, limit: int) -> dict[str, Any]:
    """One JSON object of at most `limit` bytes, or CheckpointError."""
    try:
        size = file.stat().st_size
        if size > limit:
            raise CheckpointError(f"{file} has {size} bytes", expected=f"at most {limit}")
        value = json.loads(read_text(file, limit))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{file.name} is missing in {file.parent}",
            expected="a folder as published, with config.json and .safetensors files",
            fix="download the whole model",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"cannot read {file}: {error}", expected="one JSON object", fix="download it again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a {type(value).__name__}", expected="one JSON object")
    return value


MAX_INDEX_BYTES = 256 << 20


def _files(path: Path) -> dict[Path, tuple[str, ...] | None]:
    """Weight files and the tensors the index places in each (None = all that it holds)."""
    index = path / "model.safetensors.index.json"
    if not index.exists():
        single = path / "model.safetensors"
        found = [single] if single.exists() else sorted(path.glob("*.safetensors"))
        if not found:
            raise CheckpointError(
                f"no .safetensors file in {path}",
                expected="model.safetensors, or shards with model.safetensors.index.json",
                fix="download the safetensors release of this model",
            )
        return dict.fromkeys(found)
    weight_map = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map", expected="tensor name -> file name")
    placed: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{index} places {name[:200]!r} in {str(file)[:200]!r}",
                expected="the name of a file beside it",
            )
        placed.setdefault(file, []).append(name)
    present = {file.name for file in path.iterdir()}
    missing = [file[:80] for file in placed if file not in present]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(placed)} weight files are missing in {path}: "
            + ", ".join(sorted(missing)[:3]),
            expected="every file that model.safetensors.index.json names",
            fix="download the missing files",
        )
    return {path / file: tuple(names) for file, names in sorted(placed.items())}
