"""An FTW folder as a checkpoint: canonical names, rows as one run of bytes each. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError
from headrace.weights.checkpoint import CANONICAL, MAX_CONFIG_BYTES, StoredTensor, read_json
from headrace.weights.ftw_index import INDEX, Index, parse

JOURNAL = "ftw.journal"  # there while a conversion is not finished


@dataclass(frozen=True, slots=True)
class FtwCheckpoint:
    """Fits `Checkpoint`; its tensors have canonical names, those of a row with their expert's
    number.
    """

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    index: Index
    dialect: str = CANONICAL


def is_ftw(path: Path) -> bool:
    """An FTW folder, finished or not."""
    return (path / INDEX).is_file() or (path / JOURNAL).is_file()


def open_ftw(path: Path) -> FtwCheckpoint:
    """Reads the index and the sizes of the shards. Raises CheckpointError."""
    index = finished(path)
    for shard in index.shards:
        check_size(path / shard.file, shard.nbytes)
    config = _unquantised(read_json(path / "config.json", MAX_CONFIG_BYTES))
    tensors: dict[str, StoredTensor] = {}
    for stored in _tensors(path, index):
        tensors[stored.name] = stored
    return FtwCheckpoint(path, config, tensors, index)


def finished(path: Path) -> Index:
    """The index of a folder. Raises CheckpointError, also where the conversion is not finished."""
    if not (path / INDEX).is_file():
        raise CheckpointError(
            f"{path} holds a conversion that is not finished",
            expected=f"{INDEX}",
            fix="give the same `headrace convert` again, which goes on where it stopped",
        )
    return parse(path)


def _unquantised(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without what tells of the number formats of the source's files."""
    told = ("quantization_config", "compression_config")
    kept = {key: value for key, value in config.items() if key not in told}
    text = kept.get("text_config")
    return kept | {"text_config": _unquantised(text)} if isinstance(text, dict) else kept


def check_size(file: Path, nbytes: int) -> None:
    """Raises CheckpointError unless `file` is there with exactly this size."""
    try:
        size = file.stat().st_size
    except OSError as error:
        raise CheckpointError(
            f"{file}: {error.strerror}", expected="every file that the index names",
            fix="copy the whole folder again, or convert again",
        ) from error  # fmt: skip
    if size != nbytes:
        raise CheckpointError(
            f"{file} has {size} bytes", expected=f"{nbytes}, as {INDEX} says",
            fix="copy the whole folder again, or convert again",
        )  # fmt: skip


def _tensors(path: Path, index: Index) -> list[StoredTensor]:
    found = []
    for name, dense in index.tensors.items():
        shard, offset, nbytes, _ = dense.span
        file = path / index.shards[shard].file
        found.append(StoredTensor(name, dense.tag, dense.shape, file, offset, nbytes))
    for layer, experts in index.experts.items():
        for expert, row in enumerate(experts.rows):
            file = path / index.shards[row.shard].file
            stem = f"layers.{layer}.experts.{expert}"
            for kind, tag, shape, offset, nbytes in experts.parts(expert):
                at = row.offset + offset
                found.append(StoredTensor(f"{stem}.{kind}", tag, shape, file, at, nbytes))
    return found
