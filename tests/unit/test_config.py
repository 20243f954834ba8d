"""EngineConfig from keys and files: everything wrong is named, nothing is ignored."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import EngineConfig, MemoryConfig, known_keys
from headrace.errors import ConfigError, HeadraceError


def test_defaults_decide_nothing() -> None:
    config = EngineConfig()
    assert (config.device, config.dtype, config.context, config.threads) == (
        "auto",
        "auto",
        None,
        None,
    )
    assert config.memory.kv_bytes is None
    assert config.schedule.step_tokens is None


def test_dotted_keys_reach_every_setting() -> None:
    strings = {"device": "cpu", "dtype": "float32"}
    for key in known_keys():
        value = strings.get(key, "7")
        config = EngineConfig.of(**{key: value})
        node: object = config
        for name in key.split("."):
            node = object.__getattribute__(node, name)
        assert node == strings.get(key, 7)
        assert config != EngineConfig()


def test_other_settings_stay() -> None:
    config = EngineConfig.of(context=100).with_keys({"schedule.step_tokens": 5})
    assert (config.context, config.schedule.step_tokens) == (100, 5)
    assert config.schedule.max_sequences == EngineConfig().schedule.max_sequences


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        (" 12 ", 12),
        ("4k", 4000),
        ("4KiB", 4096),
        ("1.5GiB", 3 << 29),
        ("500MB", 500_000_000),
        ("2g", 2 * 10**9),
        ("1e3", 1000),
        ("auto", None),
        ("none", None),
    ],
)
def test_counts_and_bytes(text: str, value: int | None) -> None:
    assert EngineConfig.of(**{"memory.kv_bytes": text}).memory.kv_bytes == value


@pytest.mark.parametrize(
    "value",
    ["", "x", "4x", "1.5", "0.3k5", "nan", "inf", "-inf", "1e999", "gib", True, 1.5, [1], {}, b"4"],
)
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(ConfigError, match=r"memory\.kv_bytes"):
        EngineConfig.of(**{"memory.kv_bytes": value})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("device", "gpu", "auto, cpu, cuda, emulated"),
        ("device", 3, "a word"),
        ("dtype", "int4", "float32"),
        ("context", 0, "1 to"),
        ("context", -4, "1 to"),
        ("threads", 5000, "1 to 1024"),
        ("schedule.step_tokens", 0, "1 to"),
        ("schedule.max_queued", -1, "0 to"),
        ("schedule.max_sequences", "auto", "a whole number"),
        ("schedule.max_sequences", None, "a whole number"),
        ("memory", 4, "memory.NAME"),
        ("memory.kv_bytes.x", 4, "below a plain setting"),
        ("contxt", 4, "did you mean 'context'"),
        ("memory.kv", 4, "unknown setting 'memory.kv'"),
        ("", 4, "unknown setting ''"),
        ("memory.", 4, "unknown setting"),
        ("__class__", 4, "unknown setting"),
    ],
)
def test_wrong_keys_and_values_are_named(key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        EngineConfig.of(**{key: value})
    assert said in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_config_built_directly_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="dtype"):
        EngineConfig(dtype="int3")
    with pytest.raises(ConfigError, match="block_tokens"):
        EngineConfig(memory=MemoryConfig(block_tokens=0))


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    file.write_text('context = 4096\ndtype = "float32"\n[memory]\nkv_bytes = "1GiB"\n')
    config = EngineConfig.from_file(file)
    assert config == EngineConfig.of(
        **{"context": 4096, "dtype": "float32", "memory.kv_bytes": 1 << 30}
    )


@pytest.mark.parametrize(
    "content", [b"context = ", b"\xff\xfe", b"context = [1]", b"[nothing]\nx = 1", b"context = 1.0"]
)
def test_broken_toml(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "engine.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        EngineConfig.from_file(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match=path.name):
            EngineConfig.from_file(path)


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=12) | st.integers() | st.none()))
def test_nothing_but_typed_errors(keys: dict[str, object]) -> None:
    with contextlib.suppress(HeadraceError):
        EngineConfig().with_keys(keys)


def test_importing_the_package_loads_no_torch() -> None:
    import subprocess
    import sys

    code = "import headrace, sys; assert 'torch' not in sys.modules; print(headrace.EngineConfig())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "EngineConfig" in done.stdout
