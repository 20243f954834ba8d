"""What the user asked for: frozen, and None or "auto" means "decide for me"."""

from __future__ import annotations

import dataclasses
import difflib
import operator
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_type_hints

from headrace.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda", "emulated")
DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Bytes for the caches. None = from what the machine has free."""

    kv_bytes: int | None = None
    block_tokens: int = 16  # tokens of one KV block


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """`step_tokens` bounds a step, so that a long prompt never freezes another stream."""

    step_tokens: int | None = None
    max_sequences: int = 16
    max_queued: int = 256


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Keys as `--set`, the TOML file and `EngineConfig.of` take them: dotted paths into this tree.

    Raises ConfigError where a value is out of range.
    """

    device: str = "auto"
    dtype: str = "auto"  # of KV and matrix products: auto = the checkpoint's own
    context: int | None = None  # longest sequence in tokens
    threads: int | None = None
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def of(cls, **keys: Any) -> Self:
        """From dotted keys: `EngineConfig.of(device="cpu", **{"memory.kv_bytes": 1 << 30})`."""
        return cls().with_keys(keys)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """From a TOML file whose tables are this tree."""
        try:
            tree = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(
                f"cannot read config file {path}: {error}", expected="a TOML file"
            ) from error
        return cls().with_keys(dict(_flatten(tree)))

    def with_keys(self, keys: Mapping[str, Any]) -> Self:
        """A copy with these dotted keys set; strings are converted to each key's type.

        Raises ConfigError on an unknown key, a wrong type or a value out of range.
        """
        config = self
        for key, value in keys.items():
            config = _set(config, key.split("."), key, value)
        return config


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            flat += _flatten(value, f"{prefix}{key}.")
        else:
            flat.append((prefix + key, value))
    return flat


def _set(node: Any, path: list[str], key: str, value: Any) -> Any:
    values = _values(node)
    if path[0] not in values:
        near = difflib.get_close_matches(key, known_keys(), n=1)
        raise ConfigError(
            f"unknown setting {key!r}",
            expected="one of " + ", ".join(known_keys()),
            fix=f"did you mean {near[0]!r}?" if near else "",
        )
    old = values[path[0]]
    if dataclasses.is_dataclass(old):
        if len(path) == 1:
            raise ConfigError(f"{key!r} is a group", expected=f"a key such as {key}.NAME")
        return dataclasses.replace(node, **{path[0]: _set(old, path[1:], key, value)})
    if len(path) > 1:
        raise ConfigError(f"{key!r} goes below a plain setting", expected=path[0])
    kind = get_type_hints(type(node))[path[0]]
    return dataclasses.replace(node, **{path[0]: _convert(key, value, kind)})


def _values(node: Any) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(node)]
    return {name: operator.attrgetter(name)(node) for name in names}


def _convert(key: str, value: Any, kind: Any) -> Any:
    optional = kind == (int | None)
    if optional and value in (None, "auto", "none"):
        return None
    if kind is str:
        if isinstance(value, str):
            return value
    elif (kind is int or optional) and not isinstance(value, bool):
        if isinstance(value, int):
            return value
        if isinstance(value, str):
            parsed = _parse_int(value)
            if parsed is not None:
                return parsed
    expected = {"int": "a whole number", "str": "a word"}.get(
        kind.__name__ if isinstance(kind, type) else "", 'a whole number or "auto"'
    )
    raise ConfigError(f"{key} = {value!r}", expected=expected)


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def _parse_int(text: str) -> int | None:
    """`4096`, `4GiB`, `1.5GiB`, `500MB`, `32k`: a count or bytes; None unless it is whole."""
    digits = text.strip().lower().removesuffix("b")
    number = digits.rstrip("kmgi")
    unit = _UNITS.get(digits[len(number) :])
    if unit is None:
        return None
    try:
        value = float(number) * unit
    except ValueError:
        return None
    return int(value) if value.is_integer() else None


def known_keys(node: Any = None, prefix: str = "") -> list[str]:
    """Every dotted key that `with_keys` takes."""
    node = EngineConfig() if node is None else node
    keys: list[str] = []
    for name, value in _values(node).items():
        nested = dataclasses.is_dataclass(value)
        keys += known_keys(value, f"{prefix}{name}.") if nested else [prefix + name]
    return keys


def _check(config: EngineConfig) -> None:
    def choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            raise ConfigError(f"{key} = {value!r}", expected="one of " + ", ".join(allowed))

    def at_least(key: str, value: int | None, low: int, high: int = 1 << 50) -> None:
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{key} = {value}", expected=f"{low} to {high}")

    choice("device", config.device, DEVICES)
    choice("dtype", config.dtype, DTYPES)
    at_least("context", config.context, 1, 1 << 30)
    at_least("threads", config.threads, 1, 1024)
    at_least("memory.kv_bytes", config.memory.kv_bytes, 1)
    at_least("memory.block_tokens", config.memory.block_tokens, 1, 1024)
    at_least("schedule.step_tokens", config.schedule.step_tokens, 1, 1 << 20)
    at_least("schedule.max_sequences", config.schedule.max_sequences, 1, 4096)
    at_least("schedule.max_queued", config.schedule.max_queued, 0, 1 << 20)
