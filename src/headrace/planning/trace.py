"""RoutingTrace: which experts the router chose, step by step; and the file it is kept in.

File: magic, little-endian u32 length of a JSON header, the header, then `lengths` (u32 a step),
`prefill` (u8 a token), `ids` (u16 [tokens, MoE layers, widest top-k]). See docs/simulator.md.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError, ConfigError
from headrace.files import read_bytes
from headrace.planning.facts import ModelFacts

MAGIC = b"HRTRACE\x01"
NONE = 0xFFFF  # fills a layer with fewer experts a token than the widest
MOST_LAYERS, MOST_EXPERTS, MOST_TOP_K = 4096, NONE, 1024
MOST_HEADER, MOST_BYTES = 1 << 20, 4 << 30

Ids = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class TraceModel:
    """Whose routing it is; three numbers per layer, 0 where a layer is dense."""

    family: str
    experts: tuple[int, ...]
    top_k: tuple[int, ...]
    row_bytes: tuple[int, ...]

    @classmethod
    def of(cls, facts: ModelFacts) -> TraceModel:
        return cls(facts.family, facts.experts, facts.top_k, facts.expert_bytes)

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, experts in enumerate(self.experts) if experts)

    @property
    def widest(self) -> int:
        return max(self.top_k, default=0)

    def label(self) -> str:
        layers = self.moe_layers
        experts = max(self.experts, default=0)
        return f"{self.family}, {len(layers)} MoE layers x {experts} experts, top-{self.widest}"


@dataclass(frozen=True)
class RoutingTrace:
    """Steps in the order they ran, tokens of a step in the order of its batch."""

    model: TraceModel
    lengths: NDArray[np.uint32]  # tokens of each step
    prefill: NDArray[np.bool_]  # of each token: it was read from a prompt
    ids: Ids  # [tokens, MoE layers, widest top-k], best first, NONE behind the last

    @property
    def tokens(self) -> int:
        return len(self.prefill)

    @property
    def decode_steps(self) -> int:
        """Steps with at least one decoded token."""
        return sum(1 for _, prefill in self.steps() if not prefill.all())

    def steps(self) -> Iterator[tuple[Ids, NDArray[np.bool_]]]:
        """(ids, prefill) of the tokens of each step."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        for start, end in zip(ends - self.lengths, ends, strict=True):
            yield self.ids[start:end], self.prefill[start:end]

    def expect(self, model: TraceModel) -> None:
        """Raises ConfigError when the trace is of another model."""
        if (self.model.experts, self.model.top_k) != (model.experts, model.top_k):
            raise ConfigError(
                f"the trace is of {self.model.label()}",
                expected=model.label(),
                fix="record a trace with this model",
            )

    def to_bytes(self) -> bytes:
        """The file's content."""
        body = b"".join(
            (
                self.lengths.astype("<u4").tobytes(),
                self.prefill.astype("u1").tobytes(),
                self.ids.astype("<u2").tobytes(),
            )
        )
        header = {
            "family": self.model.family,
            "experts": self.model.experts,
            "top_k": self.model.top_k,
            "row_bytes": self.model.row_bytes,
            "steps": len(self.lengths),
            "tokens": self.tokens,
            "crc32": zlib.crc32(body),
        }
        text = json.dumps(header).encode()
        return MAGIC + len(text).to_bytes(4, "little") + text + body

    def save(self, path: Path) -> None:
        """A torn write never replaces a good file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(self.to_bytes())
        fresh.replace(path)

    @classmethod
    def load(cls, path: Path) -> RoutingTrace:
        """Raises CheckpointError: missing, foreign, truncated, damaged or beyond the limits."""
        try:
            size = path.stat().st_size
            if size > MOST_BYTES:
                raise _bad(path, f"{size} bytes", f"at most {MOST_BYTES}")
            data = read_bytes(path, MOST_BYTES)
        except OSError as error:
            raise _bad(path, error.strerror or str(error), "a routing trace") from error
        if data[: len(MAGIC)] != MAGIC:
            kind = "a trace of another version" if data[:7] == MAGIC[:7] else "no routing trace"
            raise _bad(path, kind, "a file written by headrace, version 1")
        start = len(MAGIC) + 4
        length = int.from_bytes(data[len(MAGIC) : start], "little")
        if length > min(MOST_HEADER, len(data) - start):
            raise _bad(path, f"a header of {length} bytes", "one that fits in the file")
        header = _header(path, data[start : start + length])
        return _body(path, header, memoryview(data)[start + length :])


def _header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise _bad(path, "a header that is no JSON", "the header of a trace") from error
    if not isinstance(header, dict):
        raise _bad(path, "a header that is no object", "the header of a trace")
    for name in ("steps", "tokens", "crc32"):
        if not _count(header.get(name), 1 << 40):
            raise _bad(path, f"{name} = {header.get(name)!r}", "a count")
    limits = {"experts": MOST_EXPERTS, "top_k": MOST_TOP_K, "row_bytes": 1 << 40}
    for name, most in limits.items():
        values = header.get(name)
        if not isinstance(values, list) or not all(_count(v, most) for v in values):
            raise _bad(path, f"a bad list {name}", f"numbers from 0 to {most}")
    lists = [header[name] for name in limits]
    if not 0 < len(lists[0]) <= MOST_LAYERS or len({len(values) for values in lists}) != 1:
        raise _bad(path, "lists of different lengths", f"one number for 1 to {MOST_LAYERS} layers")
    for experts, top_k in zip(header["experts"], header["top_k"], strict=True):
        if top_k > experts or (experts and not top_k):
            raise _bad(path, f"top-{top_k} of {experts} experts", "1 <= top-k <= experts")
    if not isinstance(header.get("family"), str):
        raise _bad(path, "no family", "the name of a model family")
    return header


def _count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _body(path: Path, header: dict[str, Any], body: memoryview) -> RoutingTrace:
    model = TraceModel(
        header["family"],
        tuple(header["experts"]),
        tuple(header["top_k"]),
        tuple(header["row_bytes"]),
    )
    steps, tokens = header["steps"], header["tokens"]
    layers = len(model.moe_layers)
    due = 4 * steps + tokens + 2 * tokens * layers * model.widest
    if len(body) != due:
        raise _bad(path, f"{len(body)} bytes after the header", f"{due}; the file is cut or grown")
    if zlib.crc32(body) != header["crc32"]:
        raise _bad(path, "a wrong checksum", "the bytes that were written")
    lengths = np.frombuffer(body[: 4 * steps], "<u4").astype(np.uint32)
    if int(lengths.sum(dtype=np.uint64)) != tokens:
        raise _bad(path, "step lengths that do not sum up", f"{tokens} tokens")
    prefill = np.frombuffer(body[4 * steps : 4 * steps + tokens], "u1") != 0
    ids = np.frombuffer(body[4 * steps + tokens :], "<u2").astype(np.uint16)
    trace = RoutingTrace(
        model, lengths, prefill, ids.reshape(tokens, layers, model.widest) if layers else ids
    )
    _check_ids(path, trace)
    return trace


def _check_ids(path: Path, trace: RoutingTrace) -> None:
    for i, layer in enumerate(trace.model.moe_layers):
        experts, top_k = trace.model.experts[layer], trace.model.top_k[layer]
        used, rest = trace.ids[:, i, :top_k], trace.ids[:, i, top_k:]
        if ((used >= experts) & (used != NONE)).any() or (rest != NONE).any():
            raise _bad(path, f"expert ids of layer {layer} out of range", f"below {experts}")


def _bad(path: Path, found: str, expected: str) -> CheckpointError:
    return CheckpointError(f"{path}: {found}", expected=expected, fix="record the trace again")
