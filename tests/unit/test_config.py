"""EngineConfig from keys and files: everything wrong is named, nothing is ignored."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import CacheSize, EngineConfig, ExpertsConfig, MemoryConfig, known_keys
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
    words = {
        "device": "cpu",
        "dtype": "float32",
        "experts.placement": "hybrid",
        "experts.policy": "lru",
        "experts.fill": "paper",
        "experts.read_ahead": "off",
        "experts.arrive": "beside",
        "emulated.clock": "virtual",
        "emulated.pinning": "refused",
        "emulated.machine": "rtx4060-laptop",
        "memory.prefix_cache": "off",
        "memory.anchors": "off",
    }
    for key in known_keys():
        config = EngineConfig.of(**{key: words.get(key, "7")})
        node: object = config
        for name in key.split("."):
            node = object.__getattribute__(node, name)
        others = dict.fromkeys(("experts.cache", "experts.ram"), CacheSize(7, "slots"))
        assert node == words.get(key, others.get(key, 7))
        assert config != EngineConfig()


def test_the_keys_of_the_heterogeneous_runtime() -> None:
    keys = {"experts.placement": "hybrid", "experts.fill": "balanced", "experts.cache": "25%"}
    config = EngineConfig.of(device="emulated", dtype="float32", **keys)
    assert config.experts == ExpertsConfig("hybrid", "balanced", CacheSize(0.25, "share"), "auto")
    assert EngineConfig.of(**{"experts.cache": "auto"}).experts.cache is None


@pytest.mark.parametrize(
    ("text", "size", "slots"),
    [
        ("2GiB", CacheSize(1 << 31, "bytes"), 2048),
        ("64 KiB", CacheSize(1 << 16, "bytes"), 0),
        (1 << 20, CacheSize(1 << 20, "bytes"), 1),
        ("1048576", CacheSize(1 << 20, "bytes"), 1),
        ((1 << 20) - 1, CacheSize((1 << 20) - 1, "slots"), (1 << 20) - 1),
        ("120 slots", CacheSize(120, "slots"), 120),
        ("1slot", CacheSize(1, "slots"), 1),
        ("120", CacheSize(120, "slots"), 120),
        (120, CacheSize(120, "slots"), 120),
        ("25%", CacheSize(0.25, "share"), 250),
        ("0.01 %", CacheSize(0.0001, "share"), 1),
        ("100%", CacheSize(1.0, "share"), 1000),
    ],
)
def test_cache_sizes(text: object, size: CacheSize, slots: int) -> None:
    made = EngineConfig.of(**{"experts.cache": text}).experts.cache
    assert made is not None
    assert (made.amount, made.unit) == (pytest.approx(size.amount), size.unit)
    assert made.slots(slot_bytes=1 << 20, rows=1000) == slots


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0",
        0,
        "-3",
        "0%",
        "101%",
        "nan%",
        "x%",
        "% ",
        "2.5 slots",
        "slots",
        0.25,
        True,
        [1],
        "2x",
    ],
)
def test_what_is_no_cache_size(value: object) -> None:
    with pytest.raises(ConfigError, match=r"experts\.cache"):
        EngineConfig.of(**{"experts.cache": value})


@pytest.mark.parametrize(
    ("value", "fill"), [("0.3", 0.3), (1, 1.0), ("0", 0.0), ("none", "none"), ("auto", "auto")]
)
def test_fill_rules(value: object, fill: object) -> None:
    assert EngineConfig.of(**{"experts.fill": value}).experts.fill == fill


@pytest.mark.parametrize("value", ["some", "1.1", -0.1, "nan", True, None, 10**400])
def test_what_is_no_fill_rule(value: object) -> None:
    with pytest.raises(ConfigError, match=r"experts\.fill.*balanced"):
        EngineConfig.of(**{"experts.fill": value})


@pytest.mark.parametrize(
    ("text", "rate"),
    [("12GB/s", 12e9), ("1.5GiB", 1.5 * (1 << 30)), ("12.5e9", 12.5e9), (3e9, 3e9), (0, None)],
)
def test_rates(text: object, rate: float | None) -> None:
    assert EngineConfig.of(**{"emulated.link": text}).emulated.link == rate


def test_pinning_is_allowed_or_refused() -> None:
    assert EngineConfig().emulated.pinning == "allowed"
    with pytest.raises(ConfigError, match="allowed, refused"):
        EngineConfig.of(**{"emulated.pinning": "maybe"})


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
        ("1.5TB", 15 * 10**11),
        ("2TiB", 2 << 40),
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
