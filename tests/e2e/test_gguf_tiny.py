"""A model as a folder, as a GGUF file and as what is converted of it: the same answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest

sys.path.append(str(Path(__file__).parent))
from served import Served, tiny_model

from fixtures.gguf_files import matrices, write_gguf
from headrace.cli.main import main

FEW = ("--max-tokens", "12", "--temperature", "0", "--set", "dtype=float32")
SAID = ("text", "prompt_tokens", "completion_tokens", "finish")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    """Beside the folder, in parts."""
    target = folder.parent / "gguf" / "tiny.gguf"
    target.parent.mkdir()
    write_gguf(folder, target, extra=lambda writer: _add_tokenizer(writer, folder), split_tensors=9)
    return min(target.parent.glob("*.gguf"))


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    vocab = dict(described["model"]["vocab"])
    special = {t["id"]: t["special"] for t in described["added_tokens"]}
    vocab |= {t["content"]: t["id"] for t in described["added_tokens"]}
    texts = sorted(vocab, key=lambda text: vocab[text])
    assert [vocab[t] for t in texts] == list(range(len(texts)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([{True: 3, False: 4}.get(special.get(i), 1) for i in range(len(texts))])
    merges = described["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def told(capfd: Any, *arguments: object) -> dict[str, Any]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--json"])
    out, err = capfd.readouterr()
    assert ended.value.code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_same_answers(folder: Path, file: Path, capfd: Any, tmp_path: Path) -> None:
    expected = told(capfd, "run", folder, "hello you", *FEW)
    told(capfd, "convert", file, tmp_path / "ftw")
    told(capfd, "verify", tmp_path / "ftw")
    for model in (file, file.parent, tmp_path / "ftw"):
        found = told(capfd, "run", model, "hello you", *FEW)
        assert {k: found[k] for k in SAID} == {k: expected[k] for k in SAID}, model


@pytest.mark.parametrize(
    "flags",
    [
        ("--set", "experts.ram=3 slots"),
        ("--device", "emulated", "--set", "experts.cache=3 slots", "--set", "experts.fill=all"),
    ],
)
def test_experts_that_lie_elsewhere(
    file: Path, folder: Path, capfd: Any, flags: tuple[str, ...]
) -> None:
    expected = told(capfd, "run", folder, "hello you", *FEW)
    found = told(capfd, "run", file, "hello you", *FEW, *flags)
    assert {k: found[k] for k in SAID} == {k: expected[k] for k in SAID}


def test_plan_and_verify_take_the_file(folder: Path, file: Path, capfd: Any) -> None:
    plans = [told(capfd, "plan", model) for model in (folder, file)]
    same = ("device", "dtype", "context", "threads")
    assert [[plan["choices"][key] for key in same] for plan in plans[:1]] == [
        [plan["choices"][key] for key in same] for plan in plans[1:]
    ]
    assert plans[0]["memory"]["weights"] == plans[1]["memory"]["weights"] > 0
    assert told(capfd, "verify", file)["ok"]


@pytest.mark.slow
def test_a_server_names_the_model_by_its_file(file: Path) -> None:
    served = Served.start(file)
    try:
        named = httpx.get(f"{served.url}/v1/models").json()["data"][0]["id"]
        assert named == file.name.removesuffix(".gguf")
    finally:
        served.process.terminate()
        served.process.wait()


def _mixed(name: str, values: Any) -> gguf.GGMLQuantizationType:
    """As in public mixes: down projections of some layers, values and the head in more bits."""
    more = any(part in name for part in ("blk.0.ffn_down", "attn_v", "output.weight"))
    kinds = gguf.GGMLQuantizationType
    return matrices(kinds.Q8_0 if more else kinds.Q4_0)(name, values)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "mixed"])
def test_quantised_files_in_memory_on_disk_and_on_a_device(
    folder: Path, capfd: Any, tmp_path: Path, kind: str
) -> None:
    model = tmp_path / "q.gguf"
    write_gguf(
        folder,
        model,
        _mixed if kind == "mixed" else matrices(gguf.GGMLQuantizationType[kind]),
        extra=lambda writer: _add_tokenizer(writer, folder),
    )
    expected = told(capfd, "run", model, "hello you", *FEW)
    assert expected["completion_tokens"] > 1
    told(capfd, "convert", model, tmp_path / "ftw")
    for where, *flags in (
        (model, "--device", "emulated", "--set", "experts.cache=3 slots"),
        (model, "--set", "experts.ram=3 slots"),
        (model, "--set", "experts.arrive=beside"),
        (tmp_path / "ftw", "--set", "experts.ram=3 slots"),
    ):
        found = told(capfd, "run", where, "hello you", *FEW, *flags)
        assert {k: found[k] for k in SAID} == {k: expected[k] for k in SAID}, flags
