"""Damaged safetensors folders: nothing but a CheckpointError may come out, before any large
allocation, and what is opened lies within its files.
"""

from __future__ import annotations

import contextlib
import json
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
from damage import damaged, damaged_bytes
from hypothesis import given
from hypothesis import strategies as st
from weights_files import raw

from headrace.errors import CheckpointError
from headrace.weights.open import open_checkpoint

HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
    "c": {"dtype": "I8", "shape": [0, 7], "data_offsets": [26, 26]},
    "d": {"dtype": "F4", "shape": [4], "data_offsets": [26, 28]},
}
CONFIG: dict[str, Any] = {"model_type": "qwen3_moe", "rope_scaling": None}
INDEX: dict[str, Any] = {
    "metadata": {"total_size": 56},
    "weight_map": {
        **dict.fromkeys("abcd", "model-1.safetensors"),
        "e": "model-2.safetensors",
        "f": "model-2.safetensors",
    },
}
SECOND: dict[str, Any] = {
    "e": {"dtype": "F16", "shape": [7], "data_offsets": [0, 14]},
    "f": {"dtype": "F16", "shape": [7], "data_offsets": [14, 28]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    assert sorted(open_checkpoint(tmp_path).tensors) == list("abcdef")
    return tmp_path


def write(folder: Path) -> None:
    raw(folder / "model-1.safetensors", HEADER, bytes(28))
    raw(folder / "model-2.safetensors", SECOND, bytes(28))
    (folder / "model.safetensors.index.json").write_text(json.dumps(INDEX))
    (folder / "config.json").write_text(json.dumps(CONFIG))


def open_or_refuse(folder: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(CheckpointError):
        found = open_checkpoint(folder)
        for stored in found.tensors.values():
            assert stored.file.parent == folder
            assert 0 <= stored.offset <= stored.offset + stored.nbytes <= stored.file.stat().st_size
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, "kB: an allocation that only the damage asked for"


@given(st.data())
def test_damaged_header_values(folder: Path, data: st.DataObject) -> None:
    write(folder)
    table: Any = HEADER
    for _ in range(data.draw(st.integers(1, 3))):
        table = damaged(data, table)
    raw(folder / "model-1.safetensors", table, bytes(data.draw(st.sampled_from([28, 27, 0, 99]))))
    open_or_refuse(folder)


@given(st.data())
def test_damaged_header_bytes(folder: Path, data: st.DataObject) -> None:
    write(folder)
    text = damaged_bytes(data, json.dumps(HEADER).encode())
    length = data.draw(st.sampled_from([0, 0, 0, 1, -1, 1 << 20, -(1 << 62)]))
    file = folder / "model-1.safetensors"
    file.write_bytes(struct.pack("<Q", (len(text) + length) % (1 << 64)) + text + bytes(28))
    open_or_refuse(folder)


@given(st.data())
def test_damaged_index_and_config(folder: Path, data: st.DataObject) -> None:
    write(folder)
    file, table = data.draw(
        st.sampled_from([("model.safetensors.index.json", INDEX), ("config.json", CONFIG)])
    )
    if data.draw(st.booleans()):
        (folder / file).write_bytes(damaged_bytes(data, json.dumps(table).encode()))
    else:
        (folder / file).write_text(json.dumps(damaged(data, table)))
    open_or_refuse(folder)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "..", ".", "a/b", "", "a\0b", "x" * 300, "a" * 5000]
)
def test_an_index_that_points_elsewhere(folder: Path, name: str) -> None:
    table = {"weight_map": {"a": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError):
        open_checkpoint(folder)
