"""GGUF headers are checked in full: whatever is wrong with a file, the error names file, entry and
reason, and nothing large is allocated on the word of a header.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CheckpointError
from headrace.weights.gguf import TYPES, read_header
from headrace.weights.gguf_checkpoint import find_gguf, open_gguf
from headrace.weights.open import open_checkpoint

ARCH = "qwen3moe"


def write(
    file: Path, tensors: dict[str, Any] | None = None, *, split: int = 0, **keys: Any
) -> Path:
    """A file as the package writes it, with one value of every kind."""
    writer = gguf.GGUFWriter(file, ARCH, split_max_tensors=split)
    writer.add_block_count(2)
    writer.add_uint8("k.u8", 200)
    writer.add_int8("k.i8", -3)
    writer.add_uint16("k.u16", 60_000)
    writer.add_int16("k.i16", -300)
    writer.add_int32("k.i32", -70_000)
    writer.add_float32("k.f32", 0.5)
    writer.add_bool("k.bool", True)
    writer.add_string("k.text", "häuser")
    writer.add_uint64("k.u64", 1 << 40)
    writer.add_int64("k.i64", -(1 << 40))
    writer.add_float64("k.f64", 1e300)
    writer.add_array("k.texts", ["a", "", "ĠÄ", "\u2581x"])
    writer.add_array("k.numbers", [1, -2, 3])
    writer.add_array("k.lists", [["a", "b"], ["c"]])
    writer.add_array("k.flags", [True, False])
    made = {"a": np.arange(15, dtype=np.float32).reshape(3, 5), "b": np.ones(7, np.float16)}
    for name, values in (made if tensors is None else tensors).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_reads_what_the_package_writes(tmp_path: Path) -> None:
    q8 = gguf.quants.quantize(
        np.random.randn(4, 64).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
    )
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, ARCH)
    writer.add_custom_alignment(64)
    writer.add_tensor("q", q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("f", np.random.randn(2, 3, 5).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header, reader = read_header(file), gguf.GGUFReader(file)
    assert len(reader.tensors) == len(header.entries) == 2
    for tensor in reader.tensors:
        entry = header.entries[tensor.name]
        shape = tuple(int(n) for n in tensor.shape[::-1])
        assert (entry.tag, entry.shape) == (tensor.tensor_type.name, shape)
        assert (entry.offset, entry.nbytes) == (tensor.data_offset, tensor.n_bytes)


def test_metadata_of_every_kind(tmp_path: Path) -> None:
    found = read_header(write(tmp_path / "m.gguf")).metadata
    assert {k: v for k, v in found.items() if k.startswith("k.")} == {
        "k.u8": 200, "k.i8": -3, "k.u16": 60_000, "k.i16": -300, "k.i32": -70_000, "k.f32": 0.5,
        "k.bool": True, "k.text": "häuser", "k.u64": 1 << 40, "k.i64": -(1 << 40), "k.f64": 1e300,
        "k.texts": ["a", "", "ĠÄ", "\u2581x"], "k.numbers": [1, -2, 3], "k.flags": [True, False],
        "k.lists": [["a", "b"], ["c"]],
    }  # fmt: skip
    assert found["k.bool"] is True


def test_sizes_of_all_types_are_those_of_the_package() -> None:
    for code, (name, block, nbytes) in TYPES.items():
        kind = gguf.GGMLQuantizationType(code)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (name, (block, nbytes))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def head(tensors: int = 0, keys: int = 0, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


def record(
    name: str, shape: tuple[int, ...], code: int = 0, offset: int = 0, dims: int | None = None
) -> bytes:
    count = len(shape) if dims is None else dims
    numbers = struct.pack(f"<I{len(shape)}Q", count, *shape)
    return text(name) + numbers + struct.pack("<IQ", code, offset)


def one(*records: bytes, keys: bytes = b"", count: int = 0, data: int = 4096) -> bytes:
    return head(len(records), count) + keys + b"".join(records) + bytes(data)


ALIGN = text("general.alignment") + struct.pack("<I", 4)
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "short": (b"GGUF" + bytes(10), "14 bytes"),
    "magic": (head(magic=b"GGML"), "does not begin with GGUF"),
    "version 1": (head(version=1), "version 1"),
    "version 4": (head(version=4), "version 4"),
    "big-endian": (head(version=3 << 24), "big-endian"),
    "billions of tensors": (head(1 << 40), "tensors in the 0 bytes"),
    "billions of keys": (head(0, 1 << 63), "keys in the 0 bytes"),
    "long name": (one(struct.pack("<Q", 1 << 50)), r"its name has \d+ bytes"),
    "name beyond": (head(1) + struct.pack("<Q", 900) + bytes(40), "900 bytes in the"),
    "name no text": (one(struct.pack("<Q", 2) + b"\xff\xfe" + bytes(24)), "not UTF-8"),
    "same tensor": (one(record("a", (8,)), record("a", (8,), offset=32)), "'a': it occurs twice"),
    "same key": (one(keys=2 * (text("k") + struct.pack("<IB", 0, 1)), count=2), "'k': it occurs"),
    "value type": (one(keys=text("k") + struct.pack("<I", 13), count=1), "value type 13"),
    "long text": (one(keys=text("k") + struct.pack("<IQ", 8, 1 << 60), count=1), "has 115"),
    "long array": (
        one(keys=text("k") + struct.pack("<IIQ", 9, 0, 1 << 60), count=1), "an array of 1152"
    ),
    "array beyond": (
        one(keys=text("k") + struct.pack("<IIQ", 9, 8, 1 << 20), count=1), "1048576 texts"
    ),
    "array of arrays": (
        one(keys=text("k") + struct.pack("<IIQ", 9, 9, 1 << 20), count=1), "1048576 arrays"
    ),
    "arrays in arrays": (
        one(keys=text("k") + struct.pack("<I", 9) + 9 * struct.pack("<IQ", 9, 1), count=1),
        "in 5 arrays",
    ),
    "alignment 4": (one(keys=ALIGN + struct.pack("<I", 4), count=1), "alignment': it is 4"),
    "alignment 0": (one(keys=ALIGN + struct.pack("<I", 0), count=1), "alignment': it is 0"),
    "alignment 1 TB": (
        one(keys=text("general.alignment") + struct.pack("<IQ", 10, 1 << 40), count=1), "alignment"
    ),
    "dimensions": (one(record("a", (2,) * 5)), "'a': 5 dimensions"),
    "many dimensions": (one(record("a", (), dims=1 << 31)), "dimensions"),
    "zero": (one(record("a", (4, 0))), r"shape \[0, 4\]"),
    "huge": (one(record("a", (1 << 62, 1 << 62, 1 << 62))), "tensors within the file"),
    "wraps": (one(record("a", (1 << 32, 1 << 32))), "tensors within the file"),
    "no block": (one(record("a", (33,), code=8)), "whole blocks of 32"),
    "unknown type": (one(record("a", (32,), code=99)), "ggml type 99"),
    "gone type": (one(record("a", (32,), code=4)), "ggml type 4"),
    "offset unaligned": (one(record("a", (8,), offset=4)), "multiple of the alignment 32"),
    "offset beyond": (one(record("a", (8,), offset=1 << 62)), "within the file"),
    "offset negative": (one(record("a", (8,), offset=(1 << 64) - 32)), "within the file"),
    "overlap": (one(record("a", (16,)), record("b", (8,), offset=32)), "'b': it overlaps 'a'"),
    "same place": (one(record("a", (8,)), record("b", (8,))), "overlaps"),
    "truncated": (one(record("a", (1010,)), data=4000), "of a file of"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(BAD[name][0])
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=BAD[name][1]) as caught:
        read_header(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(file) in str(caught.value)
    assert peak < 4 << 20


def test_a_truncated_header_is_an_error_at_every_length(tmp_path: Path) -> None:
    data = write(tmp_path / "m.gguf").read_bytes()
    file = tmp_path / "cut.gguf"
    for length in range(len(data) - 32):  # the last tensor ends within the last 32 bytes
        file.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            read_header(file)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()


NUMBERS = st.sampled_from([0, 1, 7, 31, 255, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1])
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.one_of(st.binary(min_size=1, max_size=9), NUMBERS)),
    min_size=1,
    max_size=6,
)


@given(edits=EDITS, cut=st.floats(0, 1), keep=st.booleans())
@settings(max_examples=400)
def test_a_damaged_header_is_an_error_of_ours(
    whole: bytes, edits: list[tuple[float, Any]], cut: float, keep: bool, tmp_path_factory: Any
) -> None:
    data = bytearray(whole)
    for place, change in edits:
        at = int(place * (len(data) - 9))
        new = change if isinstance(change, bytes) else change.to_bytes(8, "little")
        data[at : at + len(new)] = new
    if not keep:
        del data[int(cut * len(data)) :]
    file = tmp_path_factory.getbasetemp() / "damaged.gguf"
    file.write_bytes(data)
    try:
        open_checkpoint(file)
    except CheckpointError:
        return


def _model(count: int) -> dict[str, Any]:
    return {f"t{n}": np.full((2, 4), n, np.float32) for n in range(count)}


def test_split_files_are_one_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", _model(7), split=3)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [p.name for p in parts] == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    opened = [_tensors(open_gguf, part) for part in (*parts, find_gguf(tmp_path))]
    assert all(tensors == opened[0] for tensors in opened)
    assert set(opened[0]) == set(_model(7))
    assert {file for file, _ in opened[0].values()} == {p.name for p in parts}
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 parts are missing.*00002-of-00003"):
        open_gguf(parts[0])


def _tensors(open_it: Callable[[Path], Any], path: Path | None) -> dict[str, tuple[str, int]]:
    assert path is not None
    # The tensors are of no model: only the table is looked at.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.weights.gguf_checkpoint.config_of", lambda *_: {})
        return {n: (t.file.name, t.offset) for n, t in open_it(path).tensors.items()}


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", _model(4), split=2)
    first, second = sorted(tmp_path.glob("*.gguf"))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(CheckpointError, match="says it is part 1"):
        open_gguf(first)
    first.write_bytes(data)
    second.write_bytes(data)
    with pytest.raises(CheckpointError, match="says it is part 0"):
        open_gguf(first)
    with pytest.raises(CheckpointError, match="named as part 3 of 2"):
        open_gguf(tmp_path / "m-00003-of-00002.gguf")
    with pytest.raises(CheckpointError, match="named as part 1 of 99999"):
        open_gguf(tmp_path / "m-00001-of-99999.gguf")


def test_a_folder_holds_one_model(tmp_path: Path) -> None:
    assert find_gguf(tmp_path) is None
    write(tmp_path / "mmproj-F16.gguf")
    assert find_gguf(tmp_path) is None
    write(tmp_path / "a.gguf")
    assert find_gguf(tmp_path) == tmp_path / "a.gguf"
    write(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"2 models: a\.gguf, b\.gguf"):
        open_checkpoint(tmp_path)
