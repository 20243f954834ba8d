"""BandwidthProfile: what link and host were measured to carry, kept per machine and corrected.

A profile is used only on the machine and model kind it was measured with.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from headrace.errors import ConfigError
from headrace.files import read_text
from headrace.planning.facts import ModelFacts

FORMAT, VERSION = "headrace-profile", 1


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One number format, expert shape and thread count. Bytes/s and seconds."""

    link: float  # each alone
    host: float
    link_shared: float  # both at once: measured, never assumed to subtract
    host_shared: float
    fill_s: float = 0.0  # fixed cost of a batch of fills
    handoff_s: float = 0.0  # fixed cost of one trip to the host pool

    def __post_init__(self) -> None:
        rates = (self.link, self.host, self.link_shared, self.host_shared)
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise ConfigError(
                f"bandwidths {rates}", expected="numbers above 0, in bytes per second"
            )
        if not all(math.isfinite(cost) and cost >= 0 for cost in (self.fill_s, self.handoff_s)):
            raise ConfigError(
                f"fixed costs fill_s = {self.fill_s}, handoff_s = {self.handoff_s}",
                expected="seconds, 0 or more",
            )

    @classmethod
    def subtracting(cls, link: float, host: float) -> ProfileRow:
        """From two bandwidths alone: the host keeps what the link leaves, as the paper assumes.

        Equation 1 of arXiv 2608.16157. The host never falls below a hundredth of its own.
        """
        return cls(link, host, link, max(host - link, host / 100))


def side_by_side(row: ProfileRow, link_bytes: float, host_bytes: float) -> tuple[float, float]:
    """Seconds until link and host are done that start at the same time; 0 for one with no bytes.

    Both go at their shared rates until one is done; the other has the memory to itself then.
    """
    if not host_bytes:
        return (row.fill_s + link_bytes / row.link if link_bytes else 0.0), 0.0
    if not link_bytes:
        return 0.0, row.handoff_s + host_bytes / row.host
    link_s = row.fill_s + link_bytes / row.link_shared
    host_s = row.handoff_s + host_bytes / row.host_shared
    if link_s < host_s:
        begun_s = max(link_s, row.handoff_s)
        left = host_bytes - (begun_s - row.handoff_s) * row.host_shared
        return link_s, begun_s + left / row.host
    begun_s = max(host_s, row.fill_s)
    left = link_bytes - (begun_s - row.fill_s) * row.link_shared
    return begun_s + left / row.link, host_s


@dataclass(frozen=True)
class BandwidthProfile:
    """Rows by layer kind, for example `mxfp4 2880x2880 t6`, measured on one machine."""

    fingerprint: str  # of machine and model kind
    rows: Mapping[str, ProfileRow] = field(default_factory=dict)

    def row(self, kind: str) -> ProfileRow | None:
        return self.rows.get(kind)

    def save(self, path: Path) -> None:
        """Readable in a diff; a torn write never replaces a good file."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "rows": {kind: asdict(row) for kind, row in self.rows.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")
        fresh.replace(path)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> BandwidthProfile:
        """Raises ConfigError: missing, not a profile, of another version or another machine."""
        body = _read(path)
        if body.get("version") != VERSION:
            raise _bad(path, f"profile version {body.get('version')!r}", f"version {VERSION}")
        theirs = body.get("fingerprint")
        if theirs != fingerprint:
            raise _bad(path, f"a profile of {theirs!r}", f"one of {fingerprint!r}")
        rows = body.get("rows")
        if not isinstance(rows, dict):
            raise _bad(path, "no rows", "an object of rows")
        return cls(fingerprint, {str(kind): _row(path, kind, row) for kind, row in rows.items()})


def layer_kind(facts: ModelFacts, layer: int) -> str | None:
    """Layers of one kind share a row of the profile: format, width and bytes. None where dense."""
    if not facts.experts[layer]:
        return None
    return f"{facts.dtype} {facts.hidden} wide, {facts.expert_bytes[layer]} bytes"


def layer_kinds(facts: ModelFacts) -> dict[str, int]:
    """Every kind once, with the bytes of its rows, in the order of the layers."""
    kinds: dict[str, int] = {}
    for layer in range(facts.layers):
        kind = layer_kind(facts, layer)
        if kind is not None:
            kinds[kind] = facts.expert_bytes[layer]
    return kinds


def fingerprint(machine: str, cores: int, device: str, facts: ModelFacts) -> str:
    """What a profile holds for: `machine` is the CPU's name, `device` says all that sets its speed.

    Readable, because it is shown when it does not fit.
    """
    return f"{machine}, {cores} cores, {device}; {' + '.join(layer_kinds(facts)) or 'dense'}"


def profile_path(home: Path, facts: ModelFacts) -> Path:
    """One file a model kind. The machine is not in the name: a copied file is told apart by its
    fingerprint, and said to be another machine's.
    """
    kinds = zlib.crc32(" + ".join(layer_kinds(facts)).encode())
    return home / "profiles" / f"{facts.family}-{kinds:08x}.json"


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured, or why nothing is known."""

    profile: BandwidthProfile | None
    reason: str


NOT_MEASURED = Found(None, "not measured yet: run `headrace measure`")


def find_profile(path: Path, fingerprint: str) -> Found:
    """The profile if it is of this machine and model kind. Never raises: one can measure anew."""
    if not path.exists():
        return NOT_MEASURED
    try:
        return Found(BandwidthProfile.load(path, fingerprint), f"measured: {path}")
    except ConfigError as error:
        return Found(None, f"a profile is ignored: {error}")


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(read_text(path))
    except OSError as error:
        raise _bad(path, str(error.strerror or error), "a bandwidth profile") from error
    except ValueError as error:
        raise _bad(path, "no JSON", "a bandwidth profile") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _bad(path, "another kind of file", f'"format": "{FORMAT}"')
    return body


def _row(path: Path, kind: object, row: object) -> ProfileRow:
    names = {f.name for f in fields(ProfileRow)}
    if not isinstance(row, dict) or set(row) != names:
        raise _bad(path, f"row {kind!r} with other fields", ", ".join(sorted(names)))
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in row.values()):
        raise _bad(path, f"row {kind!r} with a value that is no number", "numbers")
    return ProfileRow(**row)


def _bad(path: Path, found: str, expected: str) -> ConfigError:
    return ConfigError(f"{path}: {found}", expected=expected, fix="run `headrace measure`")


class Correction:
    """Keeps a row true while it is used: a median over a window, blended in slowly.

    The machine is not dedicated. One late step (a page fault, a context switch) moves nothing,
    because a median of the last few decides; a lasting change is followed within a few windows.
    """

    def __init__(self, row: ProfileRow, *, window: int = 9, blend: float = 0.25) -> None:
        assert window % 2 == 1
        assert 0 < blend <= 1
        self._row = row
        self._blend = blend
        self._link: deque[float] = deque(maxlen=window)
        self._host: deque[float] = deque(maxlen=window)

    @property
    def row(self) -> ProfileRow:
        return self._row

    def observe(
        self, row_bytes: int, fills: int, host: int, *, fill_s: float, host_s: float
    ) -> None:
        """One layer of one step: rows of each branch, and how long each took."""
        self.observe_step(row_bytes, [(fills, host, fill_s, host_s)])

    def observe_step(self, row_bytes: int, layers: Iterable[tuple[int, int, float, float]]) -> None:
        """All layers of one step: (fills, host rows, seconds of each). One correction for all."""
        row = self._row
        links = hosts = 0
        for fills, host, fill_s, host_s in layers:
            # As much as a branch was slower than predicted, so much less it would carry alone.
            times = side_by_side(row, fills * row_bytes, host * row_bytes)
            if fills and fill_s > row.fill_s:
                self._link.append(row.link * (times[0] - row.fill_s) / (fill_s - row.fill_s))
                links += 1
            if host and host_s > row.handoff_s:
                self._host.append(row.host * (times[1] - row.handoff_s) / (host_s - row.handoff_s))
                hosts += 1
        if links:
            row = _scaled(row, "link", self._factor(self._link, row.link, links))
        if hosts:
            row = _scaled(row, "host", self._factor(self._host, row.host, hosts))
        self._row = row

    def _factor(self, seen: deque[float], alone: float, count: int) -> float:
        """What to multiply a side's rates by, after `count` more were seen."""
        if len(seen) < (seen.maxlen or 0):
            return 1.0
        blend = 1.0 - (1.0 - self._blend) ** count
        moved: float = (median(seen) / alone) ** blend
        return moved


def _scaled(row: ProfileRow, side: str, factor: float) -> ProfileRow:
    """Both rates of one side: what slows a link slows it alone and shared."""
    if side == "link":
        return replace(row, link=row.link * factor, link_shared=row.link_shared * factor)
    return replace(row, host=row.host * factor, host_shared=row.host_shared * factor)
