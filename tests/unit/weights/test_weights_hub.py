"""Pulling from a hub: what is chosen, that a killed one goes on, and that nothing wrong stays."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import COMMIT, FakeHub, serving

from headrace.errors import CapacityError, CheckpointError, ConfigError
from headrace.weights import hub
from headrace.weights.hub import HubFile, Note, Reference, chosen, pull, pulled

RANDOM = os.urandom(5 << 20)
FILES = {
    "README.md": b"text",
    "config.json": b'{"model_type": "mixtral"}',
    "tokenizer.json": b'{"a": 1}',
    "additional_chat_templates/tool_use.jinja": b"{{ x }}",
    "model-00001-of-00002.safetensors": RANDOM[: 3 << 20],
    "model-00002-of-00002.safetensors": RANDOM[3 << 20 :],
    "model.safetensors.index.json": b"{}",
    "consolidated.safetensors": b"again",
    "original/model.safetensors": b"older",
    "pytorch_model.bin": b"pickle",
    "empty/none.txt": b"",
}
SERVED = {
    "config.json", "tokenizer.json", "additional_chat_templates/tool_use.jinja",
    "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
}  # fmt: skip
WHOLE = Reference("org/name")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    from huggingface_hub import constants

    with serving(FILES) as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        template = made.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield made


def held(folder: Path) -> dict[str, bytes]:
    return {
        str(f.relative_to(folder)): f.read_bytes()
        for f in folder.rglob("*")
        if f.is_file() and f.name != hub.NOTE
    }


def test_only_what_is_served_arrives_whole(server: FakeHub, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    assert pulled(WHOLE, tmp_path) is None
    folder = pull(WHOLE, tmp_path, lambda done, total: told.append((done, total)))
    assert folder == tmp_path / "models" / "org" / "name" == pulled(WHOLE, tmp_path)
    assert held(folder) == {name: FILES[name] for name in SERVED}
    total = sum(len(FILES[name]) for name in SERVED)
    assert told[-1] == (total, total)
    server.asked.clear()
    assert pull(WHOLE, tmp_path) == folder
    assert server.asked == []


@pytest.mark.parametrize("ranges", [True, False])
def test_a_part_is_gone_on_with(server: FakeHub, tmp_path: Path, *, ranges: bool) -> None:
    name, server.ranges = "model-00001-of-00002.safetensors", ranges
    folder = WHOLE.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / f"{name}.part").write_bytes(FILES[name][:1_000_001])
    told: list[int] = []
    pull(WHOLE, tmp_path, lambda done, total: told.append(done))
    assert (name, "bytes=1000001-") in server.asked
    assert held(folder) == {name: FILES[name] for name in SERVED}
    assert told[-1] == sum(len(FILES[name]) for name in SERVED)


def test_small_files_are_looked_at_before_weights_are_fetched(
    server: FakeHub, tmp_path: Path
) -> None:
    def refuse(folder: Path) -> None:
        assert {f.name for f in folder.glob("*.json")} >= {"config.json", "tokenizer.json"}
        raise CheckpointError("not served")

    with pytest.raises(CheckpointError, match="not served"):
        pull(WHOLE, tmp_path, look=refuse)
    assert not any(
        ".safetensors" in name for name in held(WHOLE.folder(tmp_path)) if "index" not in name
    )
    looked: list[Path] = []
    assert pull(WHOLE, tmp_path, look=looked.append) == looked[0]
    assert pull(WHOLE, tmp_path, look=refuse) == looked[0]


def test_a_wrong_part_is_found_and_fetched_anew(server: FakeHub, tmp_path: Path) -> None:
    name = "model-00001-of-00002.safetensors"
    folder = WHOLE.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / f"{name}.part").write_bytes(bytes(1000))
    with pytest.raises(CheckpointError, match=f"{name} arrived with a wrong checksum"):
        pull(WHOLE, tmp_path)
    assert pulled(WHOLE, tmp_path) is None
    assert held(pull(WHOLE, tmp_path))[name] == FILES[name]


def test_content_of_another_checksum_is_refused(server: FakeHub, tmp_path: Path) -> None:
    server.spoiled = True
    with pytest.raises(CheckpointError, match="wrong checksum"):
        pull(WHOLE, tmp_path)
    assert pulled(WHOLE, tmp_path) is None


def test_the_disk_is_looked_at_first(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    small = type(usage)(usage.total, usage.used, (64 << 20) + 1000)
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: small)
    with pytest.raises(CapacityError, match=r"0\.07 GB free"):
        pull(WHOLE, tmp_path)
    assert server.asked == []


def test_what_is_not_there_is_told(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    with pytest.raises(ConfigError, match="no model org/other"):
        pull(Reference("org/other"), tmp_path)
    with pytest.raises(ConfigError, match="has no model"):
        pull(Reference("org/name", "Q4_K_M"), tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError, match="network") as caught:
        pull(WHOLE, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_killed_download_goes_on(server: FakeHub, tmp_path: Path) -> None:
    name = "model-00001-of-00002.safetensors"
    server.files[name] = big = os.urandom(32 << 20)
    server.delay_s = 0.005
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HEADRACE_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)
    start = "from headrace.cli.main import main; main()"
    command = [sys.executable, "-c", start, "pull", "org/name"]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    folder = WHOLE.folder(tmp_path)
    part, deadline = folder / f"{name}.part", time.monotonic() + 60
    while not part.exists() or part.stat().st_size < 1 << 20:
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    got, server.delay_s = part.stat().st_size, 0.0
    assert pulled(WHOLE, tmp_path) is None
    server.asked.clear()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert str(folder) in again.stdout
    assert server.asked[0] == (name, f"bytes={got}-")
    assert held(folder) == {n: FILES[n] for n in SERVED} | {name: big}


def listed(*names: str) -> list[HubFile]:
    return [HubFile(name, 1, name, checked=False) for name in names]


GGUF = listed(
    "M-Q4_K_M.gguf", "M-Q4_K_S.gguf", "M.Q4_K.gguf", "M-UD-Q4_K_XL.gguf", "M-Q8_0.gguf",
    "mmproj-F16.gguf", "BF16/M-BF16-00001-of-00002.gguf", "BF16/M-BF16-00002-of-00002.gguf",
    "config.json", "IQ4/other.gguf",
)  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("Q4_K_M", ["M-Q4_K_M.gguf"]),
        ("q4_k_m", ["M-Q4_K_M.gguf"]),
        ("Q4_K", ["M.Q4_K.gguf"]),
        ("Q4_K_XL", ["M-UD-Q4_K_XL.gguf"]),
        ("UD-Q4_K_XL", ["M-UD-Q4_K_XL.gguf"]),
        ("M-Q8_0.gguf", ["M-Q8_0.gguf"]),
        ("BF16", ["BF16/M-BF16-00001-of-00002.gguf", "BF16/M-BF16-00002-of-00002.gguf"]),
        ("BF16/M-BF16-00002-of-00002.gguf", [f.name for f in GGUF[6:8]]),
        ("IQ4", ["IQ4/other.gguf"]),
    ],
)
def test_a_quantisation_is_chosen_by_name(wanted: str, names: list[str]) -> None:
    assert [f.name for f in chosen(GGUF, Reference("org/name", wanted))] == names


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("Q5_K_M", "names 0 GGUF models"), (None, "names 7 GGUF models"), ("K", "0")],
)
def test_what_is_no_choice_lists_the_names(wanted: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        chosen(GGUF, Reference("org/name", wanted))
    assert "M-Q4_K_M" in str(caught.value)


def test_parts_lie_beside_each_other() -> None:
    assert {f.local for f in GGUF[6:8]} == {f"M-BF16-0000{n}-of-00002.gguf" for n in (1, 2)}


@pytest.mark.parametrize(
    "text", ["demo", "a/b/c", "../a", "a/..", "/a/b", "a/b:", "~/x", "a/b:../c"]
)
def test_what_is_no_hub_id(text: str) -> None:
    assert Reference.parse(text) is None


def test_hub_ids() -> None:
    assert Reference.parse("org/na.me-1") == Reference("org/na.me-1")
    found = Reference.parse("org/name:BF16/m.gguf")
    assert found == Reference("org/name", "BF16/m.gguf")
    assert found.folder(Path("h")) == Path("h/models/org/name/BF16-m.gguf")


def test_a_damaged_note_is_no_note(tmp_path: Path) -> None:
    Note("org/name", COMMIT, tuple(GGUF)).write(tmp_path)
    assert Note.read(tmp_path) == Note("org/name", COMMIT, tuple(GGUF))
    text = (tmp_path / hub.NOTE).read_text()
    damaged: list[Any] = ["", "[]", "{}", text[:-9], re.sub('"nbytes"', '"bytes"', text)]
    for bad in damaged:
        (tmp_path / hub.NOTE).write_text(bad)
        assert Note.read(tmp_path) is None
