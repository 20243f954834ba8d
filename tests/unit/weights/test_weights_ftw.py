"""An FTW index is believed only when every line of it is right; whatever is wrong is a typed error
that names it, before any large allocation.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ftw_folders
import pytest
import tiny
import torch
from damage import damaged, damaged_bytes
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CheckpointError
from headrace.models.source import open_model
from headrace.weights.ftw import open_ftw
from headrace.weights.ftw_index import INDEX, Index, dump, parse

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ftw")
    tiny.build("gpt_oss", path / "source", dtype=torch.bfloat16)
    return ftw_folders.converted(path / "source", path / "model")


def put(*keys: str | int, value: object) -> Change:
    def change(table: Any) -> None:
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    return change


GATE = ("experts", "0", "parts", "gate")
ROW = ("experts", "1", "rows", 2)
BAD: dict[str, tuple[Change, str]] = {
    "version": (put("ftw", value=2), "has version 2; expected version 1"),
    "version true": (put("ftw", value=True), "has version True"),
    "checksum": (put("checksum", value="md5"), "checksum 'md5'; expected crc32c"),
    "no shards": (put("shards", value=None), "shards is a JSON NoneType; expected a list"),
    "parent": (put("shards", 0, "file", value="../x.ftw"), "file name '../x.ftw'"),
    "absolute": (put("shards", 0, "file", value="/etc/passwd"), "file name '/etc/passwd'"),
    "deeper": (put("shards", 0, "file", value="a/b.ftw"), "file name 'a/b.ftw'"),
    "dots": (put("shards", 0, "file", value=".."), "file name '..'"),
    "hidden": (put("shards", 0, "file", value=".x"), "file name '.x'"),
    "backslash": (put("shards", 0, "file", value="a\\b"), "file name"),
    "zero byte": (put("shards", 0, "file", value="a\0b"), "file name"),
    "new line": (put("shards", 0, "file", value="a.ftw\n"), "file name"),
    "no name": (put("shards", 0, "file", value=""), "file name"),
    "a number": (put("shards", 0, "file", value=7), "file name 7"),
    "itself": (put("shards", 0, "file", value=INDEX), "file name"),
    "side parent": (put("files", "../x", value={}), "file name '../x'"),
    "size": (put("shards", 0, "bytes", value=-4096), "shard 0: bytes = -4096"),
    "huge size": (put("shards", 0, "bytes", value=1 << 70), "shard 0: bytes ="),
    "odd size": (put("shards", 0, "bytes", value=4097), "expected a multiple of 4096"),
    "small size": (put("shards", 0, "bytes", value=4096), "inside the shard"),
    "float size": (put("shards", 0, "bytes", value=4096.0), "bytes = 4096.0"),
    "name": (put("tensors", "a/../b", value={}), "tensor 'a/../b'"),
    "pattern": (put("tensors", "layers.{layer}.q", value={}), "canonical name"),
    "dense": (put("tensors", "norm", value=[]), "norm is a JSON list"),
    "dtype": (
        put("tensors", "norm", "dtype", value="F33"),
        "norm: dtype 'F33'; expected a dtype of FTW",
    ),
    "dtype list": (put("tensors", "norm", "dtype", value=["F32"]), "norm: dtype"),
    "shape": (put("tensors", "norm", "shape", value=[45]), "norm: 88 bytes; expected 90"),
    "shape text": (put("tensors", "norm", "shape", value="44"), "norm: shape 44"),
    "shape minus": (put("tensors", "norm", "shape", value=[-1, -44]), "norm: shape"),
    "shape huge": (put("tensors", "norm", "shape", value=[1 << 59] * 8), "norm: 88 bytes"),
    "bytes": (put("tensors", "norm", "bytes", value=1 << 60), "norm: 1152921504606846976 bytes"),
    "offset": (put("tensors", "norm", "offset", value=64), "norm lies at 64"),
    "far": (put("tensors", "norm", "offset", value=1 << 59), "inside the shard"),
    "shard": (put("tensors", "norm", "shard", value=9), "norm lies in shard 9"),
    "overlap": (put("tensors", "norm", "offset", value=0), "overlaps the entry before it"),
    "sum": (put("tensors", "norm", "crc32c", value="0123456"), "norm: checksum '0123456'"),
    "sum upper": (put("tensors", "norm", "crc32c", value="0123456G"), "eight hexadecimal"),
    "layer": (put("experts", "01", value={}), "layer '01'"),
    "layer minus": (put("experts", "-1", value={}), "layer '-1'"),
    "layer digits": (put("experts", "9" * 5000, value={}), "layer '999"),
    "layer unicode": (put("experts", "²", value={}), "expected the number of a layer"),
    "part": (put("experts", "0", "parts", "bias", value={}), "layer 0: parts"),
    "no parts": (put("experts", "0", "parts", value={}), "layer 0: parts []"),
    "part offset": (put(*GATE, "offset", value=8), "layer 0 gate at 8; expected a multiple of 64"),
    "part overlap": (put(*GATE, "offset", value=64), "behind the part before it"),
    "part shape": (put(*GATE, "shape", value=[1, 1]), "layer 0 gate: 3256 bytes; expected 2"),
    "row bytes": (put("experts", "0", "row_bytes", value=1), "layer 0: row_bytes 1"),
    "row": (put(*ROW, value=[0, 4096]), "layer 1 expert 2: [0, 4096]"),
    "row twice": (put(*ROW, value=[0, 0, "00000000"]), "overlaps the entry before it"),
    "row far": (put(*ROW, value=[0, 1 << 61, "00000000"]), "layer 1 expert 2: offset ="),
    "row float": (put(*ROW, value=[0.0, 0, "00000000"]), "layer 1 expert 2: shard = 0.0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_index(folder: Path, tmp_path: Path, case: str) -> None:
    change, words = BAD[case]
    bad = ftw_folders.changed(folder, tmp_path / "bad", change)
    with pytest.raises(CheckpointError) as caught:
        open_ftw(bad)
    said = str(caught.value)
    assert words in said
    assert str(bad / INDEX) in said
    assert "convert" in said
    assert len(said) < 6000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "the index is a JSON list"),
        ('{"ftw": 1, "ftw": 1}', "a key occurs twice"),
        ("[" * 100_000, "is not JSON"),
        ('{"ftw": ' + "9" * 5000 + "}", "is not JSON"),
        ("\xff", "is not JSON"),
    ],
)
def test_no_index_at_all(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / INDEX).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=words):
        open_ftw(tmp_path)


def test_missing_entries_and_experts(folder: Path, tmp_path: Path) -> None:
    def drop(*keys: str | int) -> Change:
        def change(table: Any) -> None:
            for key in keys[:-1]:
                table = table[key]
            del table[keys[-1]]

        return change

    for number, (keys, words) in enumerate(
        [
            (("tensors", "layers.1.q"), r"missing: layers\.1\.q"),
            (("experts", "2"), r"missing: layers\.2\.experts\.down,"),
            (("experts", "0", "rows", 5), r"missing: layers\.0\.experts\.down\.bias\[5\]"),
            (("experts", "0", "parts", "down.bias"), r"layer 0: row_bytes"),
        ]
    ):
        bad = ftw_folders.changed(folder, tmp_path / f"bad{number}", drop(*keys))
        with pytest.raises(CheckpointError, match=words):
            open_model(bad)


def test_more_than_the_model_has(folder: Path, tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0], "shard": 0, "offset": 0, "bytes": 0}
    change = put("tensors", "extra", value=empty | {"crc32c": "00000000"})
    bad = ftw_folders.changed(folder, tmp_path / "bad", change)
    with pytest.raises(CheckpointError, match="1 tensors that this architecture does not have"):
        open_model(bad)


def test_written_and_read_again(folder: Path, tmp_path: Path) -> None:
    index = parse(folder)
    (tmp_path / INDEX).write_text(dump(index))
    assert parse(tmp_path) == index


def test_it_works_where_it_was_moved(folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert {t.file.parent for t in open_ftw(moved).tensors.values()} == {moved}


def opened_or_refused(folder: Path) -> Index | None:
    """Nothing but a CheckpointError may come out, and what is opened lies within its shards."""
    try:
        found = open_ftw(folder)
    except CheckpointError:
        return None
    for stored in found.tensors.values():
        assert stored.offset >= 0
        assert stored.offset + stored.nbytes <= stored.file.stat().st_size
        assert stored.file.parent == folder
    try:
        open_model(folder)
    except CheckpointError:
        return None
    return found.index


@given(st.data())
def test_any_damage_to_the_values(folder: Path, tmp_path: Path, data: st.DataObject) -> None:
    bad = tmp_path / "bad"
    if not bad.exists():
        shutil.copytree(folder, bad)
    table = json.loads((folder / INDEX).read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        table = damaged(data, table)
    (bad / INDEX).write_text(json.dumps(table))
    opened_or_refused(bad)


@given(st.data())
def test_any_damage_to_the_text(folder: Path, tmp_path: Path, data: st.DataObject) -> None:
    bad = tmp_path / "bad"
    if not bad.exists():
        shutil.copytree(folder, bad)
    text = damaged_bytes(data, (folder / INDEX).read_bytes())
    (bad / INDEX).write_bytes(text)
    opened_or_refused(bad)
