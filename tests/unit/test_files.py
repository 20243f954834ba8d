"""Files that others wrote: bounded, and never waited for, wherever they are read."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.api.sampling import checkpoint_defaults
from headrace.chat.tokenizer import Tokenizer
from headrace.config import EngineConfig
from headrace.errors import CheckpointError, ConfigError, HeadraceError
from headrace.files import read_bytes
from headrace.planning.machines import declared
from headrace.planning.trace import RoutingTrace
from headrace.weights.open import open_checkpoint
from headrace.weights.safetensors import head_of


def test_all_of_a_file_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "f"
    for size in (0, 1, 4095, 4096, 1 << 20, (1 << 20) + 1):
        data = os.urandom(size)
        file.write_bytes(data)
        assert read_bytes(file, size) == data
        if size:
            with pytest.raises(OSError, match="More than"):
                read_bytes(file, size - 1)


def test_endless_files_end(tmp_path: Path) -> None:
    zeros = tmp_path / "endless.toml"
    zeros.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="More than"):
        EngineConfig.from_file(zeros)
    with pytest.raises(ConfigError, match="More than"):
        declared(str(zeros))
    with pytest.raises(CheckpointError, match="Not a regular file"):
        RoutingTrace.load(zeros)


def test_a_config_may_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("threads = 3\n",))
    writer.start()
    assert EngineConfig.from_file(pipe).threads == 3
    writer.join()


@pytest.mark.parametrize("text", ["[" * 20_000, "threads = " + "9" * 5000, "threads = '\ud800'"])
def test_odd_config_files_are_config_errors(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=r"odd\.toml"):
        EngineConfig.from_file(file)


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": open_checkpoint,
    "model.safetensors": open_checkpoint,
    "model.safetensors.index.json": open_checkpoint,
    "ftw.json": open_checkpoint,
    "tokenizer.json": Tokenizer.from_folder,
    "tokenizer_config.json": Tokenizer.from_folder,
    "generation_config.json": checkpoint_defaults,
}


@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_or_a_device_in_a_model_is_refused(tmp_path: Path, name: str, target: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(head_of({}))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    if target == "pipe":
        os.mkfifo(tmp_path / name)  # nobody writes: opening it would wait for ever
    else:
        (tmp_path / name).symlink_to(target)
    done: list[BaseException | None] = []

    def read() -> None:
        try:
            READERS[name](tmp_path)
            done.append(None)
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(20)
    assert done, "still reading"
    assert done[0] is None or isinstance(done[0], HeadraceError)
    if name not in ("ftw.json", "generation_config.json"):  # those count only as regular files
        assert name in str(done[0])


def test_a_number_too_long_for_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": 1})[:-2] + "9" * 5000 + "}")
    (tmp_path / "model.safetensors").write_bytes(head_of({}))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)
