"""Headers are checked in full: whatever is wrong with a file, the error names it and says what to
do.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from weights_files import raw, save

from headrace.errors import CheckpointError
from headrace.weights.safetensors import read_table

GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16(), "empty": torch.zeros(0, 4)}
    file = tmp_path / "x.safetensors"
    save_file(tensors, file, {"format": "pt"})
    table = read_table(file)
    assert set(table) == set(tensors)
    data = file.read_bytes()
    with safe_open(file, "pt") as opened:
        for name, entry in table.items():
            part = data[entry.offset : entry.offset + entry.nbytes]
            expected = opened.get_tensor(name)
            assert entry.shape == tuple(expected.shape)
            assert part == expected.view(torch.uint8).numpy().tobytes()


BAD: dict[str, tuple[object, bytes, str]] = {
    "not json": (b"{nonsense", b"", "not JSON"),
    "not utf-8": (b'{"\xff": 1}', b"", "not JSON"),
    "deep": (b"[" * 100_000, b"", "not JSON"),
    "a list": ([1, 2], b"", "not an object"),
    "twice": (b'{"a": 1, "a": 2}', b"", "twice"),
    "dimensions without end": (
        {"a": {"dtype": "U8", "shape": [1 << 59] * 2000, "data_offsets": [0, 1]}},
        b"1",
        "expected up to 8 whole numbers",
    ),
    "a size beyond floats": (
        {"a": {"dtype": "U8", "shape": [(1 << 60) - 1] * 8, "data_offsets": [0, 1]}},
        b"1",
        "malformed entry for 'a': 1 bytes",
    ),
    "no table": ({"a": 3}, b"", "malformed entry for 'a'"),
    "unknown dtype": ({"a": {**GOOD, "dtype": "F33"}}, bytes(24), "dtype 'F33'"),
    "dtype a list": ({"a": {**GOOD, "dtype": ["F32"]}}, bytes(24), "dtype"),
    "negative shape": ({"a": {**GOOD, "shape": [-2, -3]}}, bytes(24), "shape [-2, -3]"),
    "float shape": ({"a": {**GOOD, "shape": [2.0, 3]}}, bytes(24), "shape [2.0, 3]"),
    "true shape": ({"a": {**GOOD, "shape": [True, 6]}}, bytes(24), "shape [True, 6]"),
    "wrong size": ({"a": {**GOOD, "shape": [2, 4]}}, bytes(24), "expected 32 for F32 [2, 4]"),
    "backwards": ({"a": {**GOOD, "data_offsets": [24, 0]}}, bytes(24), "data_offsets"),
    "three offsets": ({"a": {**GOOD, "data_offsets": [0, 1, 24]}}, bytes(24), "data_offsets"),
    "overlap": ({"a": GOOD, "b": {**GOOD, "data_offsets": [20, 44]}}, bytes(44), "overlaps"),
    "hole": ({"a": GOOD, "b": {**GOOD, "data_offsets": [28, 52]}}, bytes(52), "follows a hole"),
    "truncated": ({"a": GOOD}, bytes(23), "is truncated"),
    "trailing": ({"a": GOOD}, bytes(25), "bytes behind its last tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_header(case: str, tmp_path: Path) -> None:
    header, data, words = BAD[case]
    file = raw(tmp_path / "model.safetensors", header, data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors") as caught:
        read_table(file)
    assert words in str(caught.value)
    assert "expected" in str(caught.value)
    assert "download this file again" in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 3, 9, 1 << 40, (1 << 64) - 1])
def test_bad_header_length(length: int, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(CheckpointError):
        read_table(file)


@pytest.mark.parametrize("size", range(8))
def test_too_short_for_a_length(size: int, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(bytes(size))
    with pytest.raises(CheckpointError, match=f"has {size} bytes"):
        read_table(file)


@given(st.data())
def test_any_damage_is_an_error_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """A byte changed or the tail cut: never anything but a typed error or a table within the
    file.
    """
    file = save(tmp_path / "x.safetensors", {"a": torch.ones(3), "b": torch.ones(2, 2).half()})
    content = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    try:
        table = read_table(file)
    except CheckpointError:
        return
    assert all(e.offset >= 0 and e.offset + e.nbytes <= len(content) for e in table.values())


def test_huge_integers_do_not_hang(tmp_path: Path) -> None:
    header: dict[str, Any] = {"a": {**GOOD, "shape": [10**30, 10**30]}}
    with pytest.raises(CheckpointError, match="shape"):
        read_table(raw(tmp_path / "x.safetensors", json.dumps(header).encode(), bytes(24)))
