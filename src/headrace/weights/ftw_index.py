"""The index of an FTW folder (docs/formats/ftw.md): what lies where, checked in full before any
offset in it is believed. No torch.

Entries (a dense tensor, or one expert's row) start on whole blocks, own their blocks alone and lie
inside the shard that they name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import CheckpointError
from headrace.files import read_bytes
from headrace.formats.format import Format
from headrace.formats.words import format_of

INDEX = "ftw.json"
VERSION = 1
CHECKSUM = "crc32c"
BLOCK = 4096  # of entries and shards: what direct I/O wants
PART_ALIGN = 64  # of the tensors in a row
MAX_INDEX_BYTES = 256 << 20
MAX_BYTES = 1 << 60
MOST_FORMS = 255  # of the rows of a layer
KINDS = ("gate", "up", "down", "gate.bias", "up.bias", "down.bias")  # in the order of a row
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")  # of a dense tensor
_LAYER = re.compile(r"0|[1-9][0-9]{0,5}")
_CRC = re.compile(r"[0-9a-f]{8}")


class Span(NamedTuple):
    """Bytes of a shard, and their checksum."""

    shard: int
    offset: int
    nbytes: int
    crc: int


class Part(NamedTuple):
    """One tensor of a row; `offset` counts from the row's start."""

    kind: str
    tag: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Dense(NamedTuple):
    """A tensor outside the experts."""

    tag: str
    shape: tuple[int, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The experts of one layer: rows that all look the same, or have one of a few forms."""

    forms: tuple[tuple[Part, ...], ...]
    rows: tuple[Span, ...]  # by expert
    form_of: tuple[int, ...]  # by expert

    def parts(self, expert: int) -> tuple[Part, ...]:
        """The tensors of one row."""
        return self.forms[self.form_of[expert]]


class Shard(NamedTuple):
    file: str
    nbytes: int


class SideFile(NamedTuple):
    """A small file beside the index: config, tokenizer, template."""

    nbytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Index:
    """All that ftw.json says."""

    writer: str
    source: Mapping[str, Any]
    files: Mapping[str, SideFile]
    shards: tuple[Shard, ...]
    tensors: Mapping[str, Dense]
    experts: Mapping[int, ExpertLayer]

    def entries(self) -> Iterator[tuple[str, Span]]:
        """Every dense tensor and every row, by the name that people read."""
        for name, dense in self.tensors.items():
            yield name, dense.span
        for layer, experts in self.experts.items():
            for expert, span in enumerate(experts.rows):
                yield f"layer {layer} expert {expert}", span


def row_bytes(parts: Sequence[Part]) -> int:
    """Of one row, from its first byte to the last of its last tensor."""
    return max(part.offset + part.nbytes for part in parts)


def nbytes_of(form: Format, shape: Sequence[int]) -> int:
    """Of a dense tensor."""
    if form.packed:
        rows, columns = shape
        return form.nbytes(rows, columns)
    return math.prod(shape) * form.element_bytes


def plain_name(name: str) -> bool:
    """Whether this names a file beside the index and nothing else: no separators, not hidden."""
    return bool(_PLAIN.fullmatch(name)) and not name.startswith(INDEX)


def parse(folder: Path) -> Index:
    """The index of a folder. Raises CheckpointError naming what is wrong; no shard is looked at."""
    file = folder / INDEX
    reader = _Reader(file)
    top = reader.table(_load(file), "the index")
    version = top.get("ftw")
    if type(version) is not int or version != VERSION:
        raise CheckpointError(
            f"{file} has version {version!r}",
            expected=f"version {VERSION}",
            fix="convert the model again with this version of headrace",
        )
    if top.get("checksum") != CHECKSUM:
        raise reader.error(f"checksum {top.get('checksum')!r}", CHECKSUM)
    shards = tuple(reader.shard(i, s) for i, s in enumerate(reader.items(top, "shards")))
    if len({s.file for s in shards}) != len(shards):
        raise reader.error("a shard that is listed twice", "every shard once")
    files = {
        reader.plain(name): reader.side_file(name, value)
        for name, value in reader.table(top.get("files"), "files").items()
    }
    tensors = {
        name: reader.dense(name, value)
        for name, value in reader.table(top.get("tensors"), "tensors").items()
    }
    experts = {
        reader.layer(key): reader.experts(key, value)
        for key, value in reader.table(top.get("experts"), "experts").items()
    }
    writer = top.get("writer")
    source = reader.table(top.get("source"), "source")
    index = Index(
        writer if isinstance(writer, str) else "", source, files, shards, tensors, experts
    )
    reader.check_blocks(index)
    return index


def dump(index: Index) -> str:
    """The text of ftw.json."""
    table = {
        "ftw": VERSION,
        "writer": index.writer,
        "checksum": CHECKSUM,
        "source": index.source,
        "files": {n: {"bytes": f.nbytes, "crc32c": _hex(f.crc)} for n, f in index.files.items()},
        "shards": [{"file": s.file, "bytes": s.nbytes} for s in index.shards],
        "tensors": {
            name: {
                "dtype": d.tag,
                "shape": d.shape,
                "shard": d.span.shard,
                "offset": d.span.offset,
                "bytes": d.span.nbytes,
                "crc32c": _hex(d.span.crc),
            }
            for name, d in index.tensors.items()
        },
        "experts": {
            str(layer): _experts_table(e) for layer, e in index.experts.items()
        },
    }  # fmt: skip
    return json.dumps(table, separators=(",", ":"))


def _experts_table(layer: ExpertLayer) -> dict[str, Any]:
    """A layer's place in the index; which form a row has is said where there are several."""
    forms = [
        {
            "row_bytes": row_bytes(parts),
            "parts": {
                p.kind: {"dtype": p.tag, "shape": p.shape, "offset": p.offset, "bytes": p.nbytes}
                for p in parts
            },
        }
        for parts in layer.forms
    ]
    rows: list[list[Any]] = [[s.shard, s.offset, _hex(s.crc)] for s in layer.rows]
    if len(forms) == 1:
        return {**forms[0], "rows": rows}
    return {
        "forms": forms,
        "rows": [[*row, form] for row, form in zip(rows, layer.form_of, strict=True)],
    }


def _hex(crc: int) -> str:
    return f"{crc:08x}"


def _load(file: Path) -> Any:
    try:
        size = file.stat().st_size
        if size > MAX_INDEX_BYTES:
            raise CheckpointError(f"{file} has {size} bytes", expected=f"at most {MAX_INDEX_BYTES}")
        return json.loads(read_bytes(file, MAX_INDEX_BYTES), object_pairs_hook=_unique)
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is not JSON ({error})", expected="one JSON object", fix="convert again"
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table


class _Reader:
    """Turns JSON values into records; every fault names the file and the entry."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def error(self, found: str, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{self._file}: {found}", expected=expected, fix="convert the model again"
        )

    def table(self, value: Any, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(f"{what} is a JSON {type(value).__name__}", "an object")
        return value

    def items(self, table: Mapping[str, Any], key: str) -> list[Any]:
        value = table.get(key)
        if not isinstance(value, list):
            raise self.error(f"{key} is a JSON {type(value).__name__}", "a list")
        return value

    def number(self, table: Mapping[str, Any], key: str, where: str) -> int:
        value = table.get(key)
        if type(value) is not int or not 0 <= value <= MAX_BYTES:
            raise self.error(f"{where}: {key} = {value!r}", "a whole number of at least 0")
        return value

    def plain(self, name: Any) -> str:
        if not isinstance(name, str) or not plain_name(name):
            raise self.error(f"file name {name!r}", "the plain name of a file beside the index")
        return name

    def crc(self, value: Any, where: str) -> int:
        if not isinstance(value, str) or not _CRC.fullmatch(value):
            raise self.error(f"{where}: checksum {value!r}", "eight hexadecimal digits")
        return int(value, 16)

    def shard(self, at: int, value: Any) -> Shard:
        where = f"shard {at}"
        table = self.table(value, where)
        nbytes = self.number(table, "bytes", where)
        if nbytes % BLOCK:
            raise self.error(f"{where} has {nbytes} bytes", f"a multiple of {BLOCK}")
        return Shard(self.plain(table.get("file")), nbytes)

    def side_file(self, name: str, value: Any) -> SideFile:
        table = self.table(value, name)
        return SideFile(self.number(table, "bytes", name), self.crc(table.get("crc32c"), name))

    def layer(self, key: str) -> int:
        if not _LAYER.fullmatch(key):
            raise self.error(f"layer {key!r}", "the number of a layer")
        return int(key)

    def dense(self, name: str, value: Any) -> Dense:
        if not _NAME.fullmatch(name) or len(name) > 200:
            raise self.error(f"tensor {name[:200]!r}", "a canonical name, such as layers.0.q")
        table = self.table(value, name)
        nbytes = self.number(table, "bytes", name)
        tag, shape = self._typed(table, name, nbytes)
        crc = self.crc(table.get("crc32c"), name)
        shard, offset = (self.number(table, key, name) for key in ("shard", "offset"))
        return Dense(tag, shape, Span(shard, offset, nbytes, crc))

    def experts(self, key: str, value: Any) -> ExpertLayer:
        where = f"layer {key}"
        table = self.table(value, where)
        several = "forms" in table
        forms = self.items(table, "forms") if several else [table]
        if not 1 <= len(forms) <= MOST_FORMS:
            raise self.error(f"{where}: {len(forms)} forms", f"1 to {MOST_FORMS}")
        made = tuple(self._form(where, self.table(form, f"{where}: a form")) for form in forms)
        rows, form_of = [], []
        for expert, row in enumerate(self.items(table, "rows")):
            text = f"{where} expert {expert}"
            if not isinstance(row, list) or len(row) != 3 + several:
                expected = (
                    "[shard, offset, checksum, form]" if several else "[shard, offset, checksum]"
                )
                raise self.error(f"{text}: {str(row)[:80]}", expected)
            place = {"shard": row[0], "offset": row[1], "form": row[3] if several else 0}
            shard, offset, form = (self.number(place, key, text) for key in place)
            if form >= len(made):
                raise self.error(f"{text}: form {form}", f"one of {len(made)}, from 0")
            nbytes = row_bytes(made[form])
            rows.append(Span(shard, offset, nbytes, self.crc(row[2], text)))
            form_of.append(form)
        return ExpertLayer(made, tuple(rows), tuple(form_of))

    def _form(self, where: str, table: Mapping[str, Any]) -> tuple[Part, ...]:
        named = self.table(table.get("parts"), f"{where}: parts")
        if not named or not set(named) <= set(KINDS):
            raise self.error(f"{where}: parts {sorted(named)[:8]}", "some of " + ", ".join(KINDS))
        parts = []
        for kind in sorted(named, key=KINDS.index):
            own, text = self.table(named[kind], kind), f"{where} {kind}"
            nbytes, offset = self.number(own, "bytes", text), self.number(own, "offset", text)
            parts.append(Part(kind, *self._typed(own, text, nbytes), offset, nbytes))
        self._check_parts(where, parts)
        nbytes = self.number(table, "row_bytes", where)
        if nbytes != row_bytes(parts):
            raise self.error(f"{where}: row_bytes {nbytes}", f"{row_bytes(parts)} as its parts say")
        return tuple(parts)

    def _typed(
        self, table: Mapping[str, Any], where: str, nbytes: int
    ) -> tuple[str, tuple[int, ...]]:
        tag, shape = table.get("dtype"), table.get("shape")
        form = format_of(tag) if isinstance(tag, str) else None
        if form is None or not isinstance(tag, str):
            raise self.error(f"{where}: dtype {str(tag)[:80]!r}", "a dtype of FTW, such as BF16")
        if (
            not isinstance(shape, list)
            or len(shape) > 8
            or any(type(n) is not int or not 0 <= n < MAX_BYTES for n in shape)
        ):
            raise self.error(f"{where}: shape {str(shape)[:80]}", "a list of whole numbers")
        if form.packed and (len(shape) != 2 or shape[1] % form.multiple):
            raise self.error(
                f"{where}: shape {shape} of {tag}",
                f"[rows, columns], columns a multiple of {form.multiple}",
            )
        if nbytes != nbytes_of(form, shape):
            raise self.error(
                f"{where}: {nbytes} bytes", f"{nbytes_of(form, shape)} for {tag} {shape}"
            )
        return tag, tuple(shape)

    def _check_parts(self, where: str, parts: Sequence[Part]) -> None:
        end = 0
        for part in sorted(parts, key=lambda p: p.offset):
            if part.offset % PART_ALIGN or part.offset < end:
                raise self.error(
                    f"{where} {part.kind} at {part.offset}",
                    f"a multiple of {PART_ALIGN}, behind the part before it",
                )
            end = part.offset + part.nbytes

    def check_blocks(self, index: Index) -> None:
        """Every entry starts on a block of its own, inside its shard."""
        placed: list[list[tuple[int, int, str]]] = [[] for _ in index.shards]
        for name, span in index.entries():
            if span.shard >= len(index.shards):
                raise self.error(f"{name} lies in shard {span.shard}", "one that is listed")
            size = index.shards[span.shard].nbytes
            if span.offset % BLOCK or span.offset + span.nbytes > size:
                raise self.error(
                    f"{name} lies at {span.offset}, {span.nbytes} bytes, in a shard of {size}",
                    f"a multiple of {BLOCK}, inside the shard",
                )
            if span.nbytes:
                placed[span.shard].append((span.offset, span.nbytes, name))
        for spans in placed:
            spans.sort()
            end = 0
            for offset, nbytes, name in spans:
                if offset < end:
                    raise self.error(f"{name} overlaps the entry before it", "blocks of its own")
                end = -(-(offset + nbytes) // BLOCK) * BLOCK
