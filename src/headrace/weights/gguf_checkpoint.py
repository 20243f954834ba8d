"""A GGUF file, or a set of split ones, as a checkpoint. No torch.

Every part's header is read; together they must hold each tensor once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError
from headrace.weights.checkpoint import GGUF, StoredTensor
from headrace.weights.gguf import GgufHeader, read_header
from headrace.weights.gguf_config import config_of, layers_of

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAX_PARTS = 1000


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """`path` is the first file; `config` has the keys that a published config.json has;
    `metadata` is all that the file says, tokenizer and chat template too.
    """

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, Any]
    dialect: str = GGUF


def open_gguf(file: Path) -> GgufCheckpoint:
    """`file` may be any part of a split set. Raises CheckpointError naming file, entry and
    reason.
    """
    files = parts_of(file)
    first = read_header(files[0])
    headers = [first, *(read_header(f) for f in files[1:])]
    count = first.metadata.get("split.count", 1)
    for number, header in enumerate(headers):
        said = (header.metadata.get("split.no", 0), header.metadata.get("split.count", 1))
        if said != (number, count) or count not in (len(files), 0):
            raise CheckpointError(
                f"{header.file} says it is part {said[0]} (from 0) of {said[1]}",
                expected=f"part {number} of {len(files)}, as it is named",
                fix="give the files their published names",
            )
    tensors = _joined(headers)
    total = first.metadata.get("split.tensors.count", len(tensors))
    if len(files) > 1 and total != len(tensors):
        raise CheckpointError(
            f"{first.file}: {len(tensors)} tensors in {len(files)} parts",
            expected=f"{total} as split.tensors.count says",
            fix="download all parts again",
        )
    layers = layers_of(first.metadata, str(first.file))
    # The layers behind the model's own predict further tokens ahead.
    tensors = {name: t for name, t in tensors.items() if _layer(name) < layers}
    config = config_of(first.metadata, tensors, str(first.file))
    return GgufCheckpoint(first.file, config, tensors, first.metadata)


def parts_of(file: Path) -> list[Path]:
    """All files of the set that `file` is a part of, in order; just itself if it is not split.

    Raises CheckpointError where one is missing.
    """
    named = _PART.fullmatch(file.name)
    if named is None:
        return [file]
    count = int(named["count"])
    if not 1 <= int(named["number"]) <= count <= MAX_PARTS:
        raise CheckpointError(
            f"{file} is named as part {int(named['number'])} of {count}",
            expected=f"parts from 1 to at most {MAX_PARTS}",
            fix="give the files their published names",
        )
    files = [
        file.with_name(f"{named['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)
    ]
    missing = [f.name for f in files if not f.is_file()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {count} parts are missing in {file.parent}: "
            + ", ".join(missing[:3]),
            expected="all parts of the model in one folder",
            fix="download the missing files",
        )
    return files


def find_gguf(folder: Path) -> Path | None:
    """The one model of this folder, None where it holds no GGUF file.

    Raises CheckpointError where there are several. Vision projectors are no models.
    """
    files = sorted(f for f in folder.glob("*.gguf") if not f.name.startswith("mmproj"))
    models: dict[object, Path] = {}
    for file in files:
        named = _PART.fullmatch(file.name)
        models.setdefault((named["stem"], named["count"]) if named else file.name, file)
    if len(models) > 1:
        raise CheckpointError(
            f"{folder} holds {len(models)} models: "
            + ", ".join(file.name for file in list(models.values())[:4]),
            expected="one GGUF model in a folder",
            fix="give the path of the file",
        )
    return next(iter(models.values()), None)


def _joined(headers: list[GgufHeader]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for header in headers:
        for name, entry in header.entries.items():
            if name in tensors:
                raise CheckpointError(
                    f"{header.file}: tensor {name!r} is also in {tensors[name].file.name}",
                    expected="every tensor once",
                    fix="download all parts again",
                )
            tensors[name] = StoredTensor(
                name, entry.tag, entry.shape, header.file, entry.offset, entry.nbytes
            )
    return tensors


def _layer(name: str) -> int:
    match name.split(".", 2):
        case ["blk", number, _] if number.isdigit():
            return int(number)
    return -1
