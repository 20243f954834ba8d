"""What `convert` writes says the same as the source, whatever stopped it on the way; `verify` names
what is not as it was.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import ftw_folders
import numpy as np
import pytest
import tiny
import torch
from engines import load
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace import _native
from headrace.errors import CapacityError, CheckpointError, ConfigError
from headrace.models.source import open_model
from headrace.weights import convert as conversion
from headrace.weights import ftw_layout, ftw_target, gather
from headrace.weights.ftw_index import BLOCK, INDEX, parse
from headrace.weights.ftw_journal import JOURNAL
from headrace.weights.verify import verify_ftw

PROMPT = list(range(3, 40))
FAMILIES = ("qwen3_moe-dense-tied-linear", "gpt_oss", "qwen3_5_moe-wrapped", "mixtral",
            "nemotron_h")  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sources")
    for name in FAMILIES:
        tiny.build(name, path / name, dtype=torch.bfloat16)
    (path / "mixtral" / "tokenizer.json").write_text('{"a": "tokenizer"}')
    (path / "mixtral" / "chat_template.jinja").write_text("{{ messages }}")
    return path


@pytest.fixture(scope="module")
def folder(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ftw_folders.converted(sources / "mixtral", tmp_path_factory.mktemp("made") / "model")


def scores(path: Path, **keys: object) -> Tensor:
    engine = load(path, **keys)
    try:
        return torch.tensor(engine.score(PROMPT))
    finally:
        engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_logits_bit_for_bit(sources: Path, tmp_path: Path, family: str) -> None:
    made = ftw_folders.converted(sources / family, tmp_path / "made")
    assert verify_ftw(made) == []
    assert torch.equal(scores(made), scores(sources / family))
    assert open_model(made).spec == open_model(sources / family).spec


def test_the_same_logits_from_slots_of_a_device(sources: Path, tmp_path: Path) -> None:
    made = ftw_folders.converted(sources / "gpt_oss", tmp_path / "made")
    hybrid = {"device": "emulated", "experts.placement": "hybrid", "experts.cache": "30%"}
    assert torch.equal(scores(made, **hybrid), scores(sources / "gpt_oss"))


def test_a_row_is_one_run_of_bytes_on_a_block_of_its_own(folder: Path, sources: Path) -> None:
    """Checked with the published files and nothing of ours but the index."""
    table = json.loads((folder / INDEX).read_text())
    stored = load_file(sources / "mixtral" / "model.safetensors")
    seen = set()
    for layer, experts in table["experts"].items():
        for e, (shard, offset, _) in enumerate(experts["rows"]):
            assert offset % BLOCK == 0
            seen.add((shard, offset))
            data = (folder / table["shards"][shard]["file"]).read_bytes()[offset:]
            for kind, part in experts["parts"].items():
                number = {"gate": 1, "up": 3, "down": 2}[kind]
                name = f"model.layers.{layer}.block_sparse_moe.experts.{e}.w{number}.weight"
                own = data[part["offset"] : part["offset"] + part["bytes"]]
                assert own == stored[name].view(torch.uint8).numpy().tobytes()
    assert len(seen) == 3 * 5


def test_small_files_come_along_and_weights_do_not(folder: Path, sources: Path) -> None:
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (sources / "mixtral" / name).read_bytes()
    assert not list(folder.glob("*.safetensors*"))
    assert not (folder / JOURNAL).exists()


def test_an_index_names_no_place_of_this_machine(folder: Path) -> None:
    assert "/" not in (folder / INDEX).read_text()


def slice_of(x: Tensor, view: gather.View) -> Tensor:
    return x.flatten().as_strided(view.shape, view.strides, view.start)


@given(st.data())
def test_any_view_through_any_window(tmp_path: Path, data: st.DataObject) -> None:
    """A strided view read in pieces is the view of the whole."""
    shape = data.draw(st.lists(st.integers(1, 14), min_size=1, max_size=3))
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    save_file({"pad": torch.zeros(data.draw(st.integers(1, 50))).half(), "x": tensor},
              tmp_path / "model.safetensors")  # fmt: skip
    (tmp_path / "config.json").write_text("{}")
    stored = open_table(tmp_path)["x"]
    view = gather.View.dense(tuple(shape))
    for _ in range(data.draw(st.integers(0, 3))):
        axis = data.draw(st.integers(0, len(shape) - 1))
        n = view.shape[axis]
        step = data.draw(st.integers(1, 3))
        begin = data.draw(st.integers(0, n - 1))
        count = data.draw(st.integers(1, -(-(n - begin) // step)))
        view = view.slice(axis, begin, count, step)
    if data.draw(st.booleans()) and len(shape) > 1:
        view = gather.View(view.shape[::-1], view.strides[::-1], view.start)
    reader = gather.Gatherer(window_bytes=data.draw(st.sampled_from([200, 1 << 12, 1 << 20])))
    for _ in range(2):  # the second time it may be held already
        words = reader.words(gather.Piece(stored, view), 0, view.shape[0])
        expected = slice_of(tensor, view).contiguous().view(torch.int16).numpy()
        assert np.array_equal(words.view(np.int16), expected)


def open_table(path: Path) -> dict:
    from headrace.weights.open import open_checkpoint

    return dict(open_checkpoint(path).tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_biases_widen_exactly(dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    format_ = {torch.bfloat16: gather.BFLOAT16, torch.float16: gather.FLOAT16}[dtype]
    wide = gather.widened(every.view(torch.int16).numpy().view(np.uint16), format_)
    expected = every.float()
    found = torch.from_numpy(wide.view(np.float32))
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_shards_are_cut_and_chunks_too(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ftw_layout, "SHARD_BYTES", 5 * BLOCK)
    monkeypatch.setattr(conversion, "CHUNK_BYTES", 100)
    made = ftw_folders.converted(sources / "gpt_oss", tmp_path / "made")
    index = parse(made)
    assert len(index.shards) > 5
    assert all((made / s.file).stat().st_size == s.nbytes for s in index.shards)
    assert verify_ftw(made) == []
    assert torch.equal(scores(made), scores(sources / "gpt_oss"))


STOPPED = """
import os, signal, sys, time
from pathlib import Path
from headrace.models.source import open_model
from headrace.weights import convert as conversion
conversion.FLUSH_BYTES = conversion.CHUNK_BYTES = 4096
conversion.WORKERS = 2
write = conversion._write_all
count = 0
def slow(*arguments):
    global count
    write(*arguments)
    count += 1
    if count == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
conversion._write_all = slow
model = open_model(Path(sys.argv[1]))
conversion.convert(model.checkpoint, model.plan, Path(sys.argv[2]))
"""


@pytest.mark.parametrize("writes", [10, 60])
def test_killed_and_gone_on_with(
    sources: Path, folder: Path, tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "made"
    command = [sys.executable, "-c", STOPPED, sources / "mixtral", target, str(writes)]
    killed = subprocess.run(command, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (target / INDEX).exists()
    with pytest.raises(CheckpointError, match=r"not finished.*goes on where it stopped"):
        open_model(target)
    known = len((target / JOURNAL).read_text().splitlines()) - 1
    with (target / JOURNAL).open("a") as stream:
        stream.write("5 00")  # torn
    written: list[int] = []
    write = conversion._write_all

    def counting(fd: int, words: gather.Words, offset: int) -> None:
        written.append(words.nbytes)
        write(fd, words, offset)

    monkeypatch.setattr(conversion, "_write_all", counting)
    ftw_folders.converted(sources / "mixtral", target)
    index = parse(target)
    total = len(list(index.entries()))
    assert len(written) < 3 * total
    assert known > 0
    assert index == parse(folder)
    assert verify_ftw(target) == []
    assert (target / "shard-00001.ftw").read_bytes() == (folder / "shard-00001.ftw").read_bytes()


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_what_was_written_to_a_shard_that_is_gone_is_written_again(
    sources: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "made"
    monkeypatch.setattr(conversion, "_publish", lambda *_: (_ for _ in ()).throw(OSError(5, "no")))
    with pytest.raises(CheckpointError, match=r"writing .* failed"):
        ftw_folders.converted(sources / "mixtral", target)
    with pytest.raises(CheckpointError, match=r"not finished.*goes on where it stopped"):
        verify_ftw(target)
    shard = target / "shard-00001.ftw"
    shard.unlink() if how == "gone" else os.truncate(shard, BLOCK)
    with pytest.raises(CheckpointError, match=r"writing .* failed"):  # and stopped once more
        ftw_folders.converted(sources / "mixtral", target)
    monkeypatch.undo()
    ftw_folders.converted(sources / "mixtral", target)
    assert verify_ftw(target) == []


def test_a_link_in_the_place_of_a_shard_is_not_written_through(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, precious = tmp_path / "made", tmp_path / "precious"
    precious.write_text("mine")
    monkeypatch.setattr(conversion, "_publish", lambda *_: (_ for _ in ()).throw(OSError(5, "no")))
    with pytest.raises(CheckpointError, match=r"writing .* failed"):
        ftw_folders.converted(sources / "mixtral", target)
    (target / "shard-00001.ftw").unlink()
    (target / "shard-00001.ftw").symlink_to(precious)
    with pytest.raises(CheckpointError, match="symbolic link"):
        ftw_folders.converted(sources / "mixtral", target)
    assert precious.read_text() == "mine"


def test_only_what_was_not_written_is_written(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole entries of the journal are believed: their bytes are not touched again."""
    target = tmp_path / "made"
    monkeypatch.setattr(conversion, "_publish", lambda *_: (_ for _ in ()).throw(OSError(5, "no")))
    with pytest.raises(CheckpointError, match=r"writing .* failed"):
        ftw_folders.converted(sources / "mixtral", target)
    monkeypatch.undo()
    monkeypatch.setattr(conversion, "_write_all", None)
    ftw_folders.converted(sources / "mixtral", target)
    assert verify_ftw(target) == []


def test_an_interrupted_conversion_of_something_else(sources: Path, tmp_path: Path) -> None:
    target = tmp_path / "made"
    target.mkdir()
    (target / JOURNAL).write_text("ftw 0123\n")
    with pytest.raises(ConfigError, match="unfinished conversion of something else"):
        ftw_folders.converted(sources / "mixtral", target)


def test_two_at_once(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "made"

    def meanwhile(*_: object) -> None:
        monkeypatch.undo()
        with pytest.raises(ConfigError, match="being converted by another process"):
            ftw_folders.converted(sources / "mixtral", target)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversion, "reserve", meanwhile)
    with pytest.raises(CapacityError, match=r"disk of .* is full.*free some disk space"):
        ftw_folders.converted(sources / "mixtral", target)
    ftw_folders.converted(sources / "mixtral", target)
    assert verify_ftw(target) == []


def test_again_is_nothing_to_do_and_another_source_is_refused(sources: Path, folder: Path) -> None:
    before = (folder / INDEX).stat().st_mtime_ns
    ftw_folders.converted(sources / "mixtral", folder)
    assert (folder / INDEX).stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="holds another model"):
        ftw_folders.converted(sources / "gpt_oss", folder)


def test_a_disk_without_room(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(ftw_target.shutil, "disk_usage", lambda _: usage._replace(free=60_000_000))
    with pytest.raises(CapacityError, match=r"60 MB free .*expected .* MB for the converted"):
        ftw_folders.converted(sources / "mixtral", tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []  # a smaller model may be written there
    monkeypatch.undo()
    ftw_folders.converted(sources / "gpt_oss", tmp_path / "made")
    assert verify_ftw(tmp_path / "made") == []


def test_destinations_that_make_no_sense(sources: Path, folder: Path, tmp_path: Path) -> None:
    source = sources / "mixtral"
    (tmp_path / "file").write_text("")
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(source)
    for target, said in {
        source: "holds the source",
        source.parent: "holds the source",
        source / "inside": "lies in it",
        link / "inside": "lies in it",
        tmp_path / "file": "is a file",
        full: "is not empty",
        tmp_path / "no" / "such": "there is no folder",
    }.items():
        with pytest.raises(ConfigError, match=said):
            ftw_folders.converted(source, target)
    with pytest.raises(ConfigError, match="is an FTW folder already"):
        ftw_folders.converted(folder, tmp_path / "again")
    assert (full / "thesis.txt").read_text() == "mine"
    assert sorted(p.name for p in full.iterdir()) == ["thesis.txt"]
    assert not (tmp_path / "again").exists()


def test_verify_names_the_entry(folder: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    index = parse(bad)
    row, norm = index.experts[1].rows[2], index.tensors["layers.0.ffn_norm"].span
    ftw_folders.flip(bad / "shard-00001.ftw", row.offset + row.nbytes - 1)
    ftw_folders.flip(bad / "shard-00001.ftw", norm.offset)
    with (bad / "tokenizer.json").open("a") as stream:
        stream.write(" ")
    faults = verify_ftw(bad)
    assert [f.entry for f in faults] == ["file", "layers.0.ffn_norm", "layer 1 expert 2"]
    assert faults[0].file.name == "tokenizer.json"
    assert f"expected {row.crc:08x}" in str(faults[2])
    assert f"offset {row.offset}" in str(faults[2])


def test_verify_names_what_a_cut_took(folder: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    index = parse(bad)
    last = index.experts[2].rows[4]
    os.truncate(bad / "shard-00001.ftw", last.offset + 10)
    assert [f.entry for f in verify_ftw(bad)] == ["shard", "layer 2 expert 4"]
    with pytest.raises(CheckpointError, match=r"shard-00001\.ftw has .* bytes; expected"):
        open_model(bad)
    (bad / "shard-00001.ftw").unlink()
    assert len(verify_ftw(bad)) == 1 + len(list(index.entries()))


def test_a_source_that_shrinks_meanwhile(sources: Path, tmp_path: Path) -> None:
    source = shutil.copytree(sources / "mixtral", tmp_path / "source")
    model = open_model(source)
    os.truncate(source / "model.safetensors", 5000)
    with pytest.raises(CheckpointError, match=r"reading .* failed"):
        conversion.convert(model.checkpoint, model.plan, tmp_path / "made")


def slow_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(st.binary(max_size=200), st.integers(0, 200))
def test_the_checksum(data: bytes, cut: int) -> None:
    assert ftw_target.crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4 has more
    held = np.frombuffer(data, np.uint8)
    cut = min(cut, len(data))
    for portable in (False, True):
        first = _native.crc32c(held.ctypes.data, cut, portable=portable)
        rest = len(data) - cut
        whole = _native.crc32c(held.ctypes.data + cut, rest, first, portable=portable)
        assert whole == slow_crc32c(data)


def test_progress_ends_at_all(sources: Path, tmp_path: Path) -> None:
    model, target, seen = open_model(sources / "mixtral"), tmp_path / "made", []
    conversion.convert(model.checkpoint, model.plan, target, lambda *now: seen.append(now))
    nbytes = sum(span.nbytes for _, span in parse(target).entries())
    assert seen[-1] == (nbytes, nbytes)
    verify_ftw(target, lambda *now: seen.append(now))
    assert seen[-1] == (nbytes, nbytes)
