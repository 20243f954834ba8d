"""What the user asked for: frozen, and None or "auto" means "decide for me"."""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from headrace.errors import ConfigError
from headrace.files import read_text

DEVICES = ("auto", "cpu", "cuda", "emulated")
DTYPES = ("auto", "float32", "bfloat16")
PLACEMENTS = ("auto", "resident", "host", "hybrid")
FILLS = ("auto", "all", "none", "paper", "balanced")
POLICIES = ("auto", "recency-frequency", "lru")
CLOCKS = ("real", "virtual")
PINNINGS = ("allowed", "refused")
SWITCH = ("on", "off")
READ_AHEAD = ("auto", "on", "off")
ARRIVALS = ("before", "beside")

SLOTS_BELOW = 1 << 20  # a plain number below this counts slots, from here on bytes


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Device memory for experts as it was asked: `2GiB`, `120 slots` or `25%` of all experts."""

    amount: float
    unit: Literal["bytes", "slots", "share"]

    def slots(self, slot_bytes: int, rows: int) -> int:
        """Whole slots; `rows`: experts of all layers. 0 where not even one fits."""
        if self.unit == "bytes":
            return int(self.amount) // slot_bytes
        if self.unit == "slots":
            return int(self.amount)
        return max(1, int(self.amount * rows + 1e-9))

    def __str__(self) -> str:
        if self.unit == "share":
            return f"{100 * self.amount:g}%"
        return f"{self.amount:.0f} {self.unit}"


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Bytes for the caches. None = from what the machine has free."""

    kv_bytes: int | None = None
    device_bytes: int | None = None  # never more of the device's memory than this
    block_tokens: int = 16  # tokens of one KV block
    prefix_cache: str = "on"  # keep what was computed for later requests that begin alike
    host_cache: int | None = None  # bytes of RAM for what a device's prefix cache parts with
    anchors: str = "on"  # save states within prompts, not behind them alone


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Where experts are evaluated, how misses are shared out, and what stays on the device."""

    placement: str = "auto"
    fill: str | float = "auto"  # a rule by name, or a fixed share of the misses
    cache: CacheSize | None = None
    policy: str = "auto"
    ram: CacheSize | None = None  # RAM for experts that lie on disk; None = all, or what fits
    read_ahead: str = "auto"  # rows that the next layer will likely want, where guesses are good
    arrive: str = "before"  # all of them before the first request, or beside it


@dataclass(frozen=True, slots=True)
class EmulatedConfig:
    """The GPU that is made of RAM: device = "emulated"."""

    memory: int | None = None  # bytes; None = from free RAM
    link: float | None = None  # bytes/s; None = as fast as copies go
    clock: str = "real"
    pinning: str = "allowed"  # refused: rows go through a buffer on their way
    machine: str | None = None  # a declared machine, by name or file: the virtual clock's rates
    host_threads: int | None = None
    device_threads: int | None = None


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
    experts: ExpertsConfig = field(default_factory=ExpertsConfig)
    emulated: EmulatedConfig = field(default_factory=EmulatedConfig)
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
            tree = tomllib.loads(read_text(path, pipes=True))
        except (OSError, ValueError, RecursionError) as error:
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
    read, expected = _READERS[kind]
    try:
        return read(value)
    except (ValueError, OverflowError):
        raise ConfigError(f"{key} = {value!r}", expected=expected) from None


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError


def _count(value: Any) -> int:
    """Whole, with or without a unit."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    whole = _parse_int(value) if isinstance(value, str) else None
    if whole is None:
        raise ValueError
    return whole


def _rate(value: Any) -> float | None:
    """Bytes per second; `12GB/s`, `12GB` and `12e9` are the same, and 0 is no limit."""
    if isinstance(value, str):
        text = value.strip().removesuffix("/s")
        whole = _parse_int(text)
        rate = float(text) if whole is None else float(whole)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        rate = float(value)
    else:
        raise ValueError
    if not math.isfinite(rate):
        raise ValueError
    return rate or None


def _fill(value: Any) -> str | float:
    if isinstance(value, str) and value in FILLS:
        return value
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        share = float(value)
        if 0.0 <= share <= 1.0:
            return share
    raise ValueError


def _cache(value: Any) -> CacheSize:
    if isinstance(value, CacheSize):
        return value
    if isinstance(value, str):
        text = value.strip().lower()
        if text.endswith("%"):
            return CacheSize(float(text[:-1]) / 100, "share")
        if text.endswith(("slot", "slots")):
            return CacheSize(int(text.removesuffix("s").removesuffix("slot")), "slots")
        number = _count(text)
        plain = text[-1].isdigit()
        return CacheSize(number, "slots" if plain and number < SLOTS_BELOW else "bytes")
    number = _count(value)
    return CacheSize(number, "slots" if number < SLOTS_BELOW else "bytes")


def _or_auto(read: Callable[[Any], Any], *words: str) -> Callable[[Any], Any]:
    return lambda value: None if value in (None, "auto", "none", *words) else read(value)


CACHE_SIZES = 'bytes ("2GiB"), "120 slots", a share of all experts ("25%") or "auto"'
_READERS: Mapping[Any, tuple[Callable[[Any], Any], str]] = {
    str: (_word, "a word"),
    str | None: (_or_auto(_word), 'a word or "auto"'),
    int: (_count, "a whole number"),
    int | None: (_or_auto(_count), 'a whole number or "auto"'),
    float | None: (_or_auto(_rate, "native"), 'bytes per second, such as "12GB/s", or "auto"'),
    str | float: (_fill, ", ".join(FILLS) + ' or a share of the misses from "0" to "1"'),
    CacheSize | None: (_or_auto(_cache), CACHE_SIZES),
}


def read_cache_size(key: str, value: Any) -> CacheSize | None:
    """What `experts.cache` takes; None = decide for me. Raises ConfigError."""
    size: CacheSize | None = _convert(key, value, CacheSize | None)
    _check_cache(key, size)
    return size


_UNITS = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40,
}  # fmt: skip


def _parse_int(text: str) -> int | None:
    """`4096`, `4GiB`, `1.5GiB`, `500MB`, `32k`: a count or bytes; None unless it is whole."""
    digits = text.strip().lower().removesuffix("b")
    number = digits.rstrip("kmgti")
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


def _choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises ConfigError unless the value is among the allowed."""
    if value not in allowed:
        raise ConfigError(f"{key} = {value!r}", expected="one of " + ", ".join(allowed))


def _at_least(key: str, value: float | None, low: int, high: int = 1 << 50) -> None:
    """Raises ConfigError unless the value is None or from low to high."""
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{key} = {value}", expected=f"{low} to {high}")


def _check_cache(key: str, size: CacheSize | None) -> None:
    if size is None:
        return
    if size.unit == "share" and not 0 < size.amount <= 1:
        raise ConfigError(f"{key} = {size}", expected="above 0% and at most 100%")
    if size.unit != "share":
        _at_least(key, size.amount, 1)


def _check_experts(experts: ExpertsConfig, emulated: EmulatedConfig) -> None:
    _choice("experts.placement", experts.placement, PLACEMENTS)
    _choice("experts.policy", experts.policy, POLICIES)
    _convert("experts.fill", experts.fill, str | float)
    _check_cache("experts.cache", experts.cache)
    _check_cache("experts.ram", experts.ram)
    _choice("experts.read_ahead", experts.read_ahead, READ_AHEAD)
    _choice("experts.arrive", experts.arrive, ARRIVALS)
    _choice("emulated.clock", emulated.clock, CLOCKS)
    _at_least("emulated.memory", emulated.memory, 1)
    _at_least("emulated.link", emulated.link, 1)
    _choice("emulated.pinning", emulated.pinning, PINNINGS)
    _at_least("emulated.host_threads", emulated.host_threads, 1, 1024)
    _at_least("emulated.device_threads", emulated.device_threads, 1, 1024)


def _check(config: EngineConfig) -> None:
    _choice("device", config.device, DEVICES)
    _choice("dtype", config.dtype, DTYPES)
    _at_least("context", config.context, 1, 1 << 30)
    _at_least("threads", config.threads, 1, 1024)
    _at_least("memory.kv_bytes", config.memory.kv_bytes, 1)
    _at_least("memory.device_bytes", config.memory.device_bytes, 1)
    _at_least("memory.block_tokens", config.memory.block_tokens, 1, 1024)
    _choice("memory.prefix_cache", config.memory.prefix_cache, SWITCH)
    _choice("memory.anchors", config.memory.anchors, SWITCH)
    _at_least("memory.host_cache", config.memory.host_cache, 0)
    _at_least("schedule.step_tokens", config.schedule.step_tokens, 1, 1 << 20)
    _at_least("schedule.max_sequences", config.schedule.max_sequences, 1, 4096)
    _at_least("schedule.max_queued", config.schedule.max_queued, 0, 1 << 20)
    _check_experts(config.experts, config.emulated)
