"""Models from a hub, file by file into one folder: only what is served, resumable, checked.
No torch.

A folder is whole once its note says so. Until then every finished file has its published name and
an unfinished one ends in `.part`, which the next call goes on with.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.errors import CapacityError, CheckpointError, ConfigError
from headrace.files import read_text

NOTE = "headrace-pull.json"
SPARE_BYTES = 64 << 20
_CHUNK = 8 << 20
_REFERENCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?::(?P<wanted>[\w./-]+))?")
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_BESIDE = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json"
    r"|special_tokens_map\.json|chat_template\.(jinja|json)|additional_chat_templates/[^/]+\.jinja"
    r"|model\.safetensors\.index\.json"
)
Progress = Callable[[int, int], None]  # done bytes, total bytes


@dataclass(frozen=True, slots=True)
class Reference:
    """`org/name`, or `org/name:WANTED` with a file or the name of a quantisation."""

    repo: str
    wanted: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference | None:
        """None where the text cannot be a hub id."""
        found = _REFERENCE.fullmatch(text)
        if found is None or ".." in text:
            return None
        return cls(found["repo"], found["wanted"])

    def folder(self, home: Path) -> Path:
        """Where it is kept."""
        whole = home / "models" / self.repo
        return whole / self.wanted.replace("/", "-") if self.wanted else whole

    def __str__(self) -> str:
        return f"{self.repo}:{self.wanted}" if self.wanted else self.repo


@dataclass(frozen=True, slots=True)
class HubFile:
    """`identity` changes with the content; it is the SHA-256 where `checked`."""

    name: str
    nbytes: int
    identity: str
    checked: bool

    @property
    def local(self) -> str:
        """Its name in our folder: GGUF files lie beside each other."""
        return PurePosixPath(self.name).name if self.name.endswith(".gguf") else self.name


@dataclass(frozen=True, slots=True)
class Note:
    """What a folder is to hold, of which commit, and whether it does."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]
    whole: bool = False

    @classmethod
    def read(cls, folder: Path) -> Note | None:
        try:
            said = json.loads(read_text(folder / NOTE))
            files = tuple(HubFile(**file) for file in said.pop("files"))
            return cls(files=files, **said)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, folder: Path) -> None:
        part = folder / f"{NOTE}.part"
        part.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        part.replace(folder / NOTE)


def pulled(reference: Reference, home: Path) -> Path | None:
    """The folder of a model that is here and whole."""
    folder = reference.folder(home)
    note = Note.read(folder)
    if note is None or not note.whole:
        return None
    return folder if all(_is_done(folder, file) for file in note.files) else None


def pull(
    reference: Reference,
    home: Path,
    progress: Progress | None = None,
    look: Callable[[Path], None] | None = None,
) -> Path:
    """Fetches what is missing; returns the folder. `look` is called with it before the first
    weights are fetched, and may raise: the small files are there then.

    Raises ConfigError for a reference that names nothing there, CheckpointError where the hub or
    the network fails, CapacityError where the disk is too small.
    """
    folder = reference.folder(home)
    hub = _Hub(reference)
    note = Note.read(folder)
    if note is None or note.whole or note.repo != reference.repo:
        commit, files = hub.files()
        note = Note(reference.repo, commit, tuple(chosen(files, reference)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_others(folder, note)
        note.write(folder)
        left = [file for file in note.files if not _is_done(folder, file)]
        _check_room(folder, left)
        meter = _Meter(sum(f.nbytes for f in note.files), progress)
        meter.add(sum(f.nbytes for f in note.files) - sum(f.nbytes for f in left))
        weights = next((file for file in left if not _BESIDE.fullmatch(file.name)), None)
        for file in left:
            if look is not None and file is weights:
                look(folder)
            _fetch(hub, note.commit, folder, file, meter)
        Note(note.repo, note.commit, note.files, whole=True).write(folder)
    except OSError as error:
        raise CapacityError(
            f"{folder} cannot be written ({error.strerror or error})",
            expected="a writable folder with enough room",
            fix="free some space or set HEADRACE_HOME to another folder",
        ) from error
    return folder


def chosen(files: Iterable[HubFile], reference: Reference) -> list[HubFile]:
    """What serving needs of a repository's files. Raises ConfigError."""
    listed = list(files)
    weights = [f for f in listed if re.fullmatch(r"model[^/]*\.safetensors", f.name)]
    weights = weights or [f for f in listed if re.fullmatch(r"[^/]+\.safetensors", f.name)]
    if reference.wanted is None and weights:
        return [f for f in listed if _BESIDE.fullmatch(f.name)] + weights
    models: dict[str, list[HubFile]] = {}
    for file in listed:
        path = PurePosixPath(file.name)
        if path.suffix == ".gguf" and not path.name.startswith("mmproj"):
            models.setdefault(_PART.sub("", file.name.removesuffix(".gguf")), []).append(file)
    found = _matching(models, reference.wanted)
    if len(found) == 1:
        return models[found[0]]
    names = ", ".join(sorted(PurePosixPath(name).name for name in models)[:40])
    raise ConfigError(
        f"{reference} names {len(found)} GGUF models" if models else f"{reference} has no model",
        expected=f"one of {names}" if models else "safetensors or GGUF files",
        fix=f"headrace pull {reference.repo}:NAME, for example Q4_K_M" if models else "",
    )


def _matching(models: Iterable[str], wanted: str | None) -> list[str]:
    if wanted is None:
        return list(models)
    word = _PART.sub("", wanted.removesuffix(".gguf")).lower()
    exact = [m for m in models if word in (m.lower(), PurePosixPath(m).name.lower())]
    if exact:
        return exact
    before = "-./_" if re.match(r"[it]?q\d|b?f\d|mxfp|nvfp", word) else "-./"
    ends = re.compile(rf"(.*[{before}])?{re.escape(word)}")
    found = [m for m in models if ends.fullmatch(m.lower())]
    return found or [m for m in models if word in PurePosixPath(m.lower()).parts[:-1]]


class _Hub:
    """The calls we make. The library is imported here: it takes a while."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def files(self) -> tuple[str, list[HubFile]]:
        """The newest commit and its files."""
        from huggingface_hub import HfApi  # noqa: PLC0415 start-up time
        from huggingface_hub import errors as hub  # noqa: PLC0415 start-up time

        repo = self._reference.repo
        try:
            found = HfApi().model_info(repo, files_metadata=True, timeout=30)
        except hub.GatedRepoError as error:
            raise ConfigError(
                f"{repo} is open only to those who agreed to its terms",
                fix=f"agree to them on the page of {repo}, then log in: hf auth login",
            ) from error
        except hub.RepositoryNotFoundError as error:
            raise ConfigError(
                f"the hub has no model {repo}, or does not show it to you",
                expected="org/name as its page shows it",
                fix="check the spelling; for a private one log in: hf auth login",
            ) from error
        except (hub.HTTPError, hub.HFValidationError, OSError) as error:
            raise self._unreachable(error) from error
        files = [
            HubFile(
                s.rfilename,
                s.size or 0,
                s.lfs.sha256 if s.lfs else str(s.blob_id),
                checked=bool(s.lfs),
            )
            for s in found.siblings or []
            if ".." not in PurePosixPath(s.rfilename).parts and not s.rfilename.startswith("/")
        ]
        return str(found.sha), files

    def fetch(self, commit: str, file: HubFile, into: Any, start: int) -> None:
        """Writes the bytes of `file` from `start` on into a file object."""
        from huggingface_hub import errors as hub  # noqa: PLC0415 start-up time
        from huggingface_hub import hf_hub_url  # noqa: PLC0415 start-up time
        from huggingface_hub.file_download import http_get  # noqa: PLC0415 start-up time
        from huggingface_hub.utils import (  # noqa: PLC0415 start-up time
            build_hf_headers,
            disable_progress_bars,
        )

        disable_progress_bars()
        url = hf_hub_url(self._reference.repo, file.name, revision=commit)
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        try:
            http_get(url, into, resume_size=start, headers=headers)
        except (hub.HTTPError, ConnectionError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> CheckpointError:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        return CheckpointError(
            f"the hub did not give {self._reference} ({said})",
            expected="a network connection",
            fix=f"check it, then give headrace pull {self._reference} again: it goes on",
        )


class _Meter:
    """Bytes of all files together."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress, self._done = total, progress, 0

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress:
            self._progress(self._done, self._total)


class _Sink:
    """A file object that sums up and counts what is written to it."""

    def __init__(self, file: Any, digest: Any, meter: _Meter, name: str) -> None:
        self._file, self._digest, self._meter, self.name = file, digest, meter, name

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self._meter.add(len(data))
        return int(self._file.write(data))

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, *_: int) -> int:
        raise _Restarted

    def truncate(self, *_: int) -> int:
        raise _Restarted


class _Restarted(Exception):
    """The server sends the whole file where a part was asked for."""


def _fetch(hub: _Hub, commit: str, folder: Path, file: HubFile, meter: _Meter) -> None:
    target = folder / file.local
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    for restarted in (False, True):
        if restarted or (part.exists() and part.stat().st_size > file.nbytes):
            part.unlink(missing_ok=True)
        digest = hashlib.sha256()
        with part.open("ab+") as stream:
            start = _sum_up(stream, digest, meter)
            try:
                if start < file.nbytes:
                    hub.fetch(commit, file, _Sink(stream, digest, meter, file.name), start)
            except _Restarted:
                meter.add(-start)
                continue
        break
    found = part.stat().st_size
    if found != file.nbytes or (file.checked and digest.hexdigest() != file.identity):
        part.unlink()
        raise CheckpointError(
            f"{file.name} arrived with {found} of {file.nbytes} bytes"
            if found != file.nbytes
            else f"{file.name} arrived with a wrong checksum",
            expected="the file as published",
            fix="give the same command again",
        )
    part.replace(target)


def _sum_up(stream: Any, digest: Any, meter: _Meter) -> int:
    stream.seek(0)
    start = 0
    while data := stream.read(_CHUNK):
        digest.update(data)
        meter.add(len(data))
        start += len(data)
    return start


def _is_done(folder: Path, file: HubFile) -> bool:
    path = folder / file.local
    return path.is_file() and path.stat().st_size == file.nbytes


def _drop_others(folder: Path, note: Note) -> None:
    """Files of an older commit that have changed since go; others stay."""
    before = Note.read(folder)
    if before is None or before.commit == note.commit:
        return
    kept = {(f.local, f.identity) for f in note.files}
    for old in before.files:
        if (old.local, old.identity) not in kept:
            (folder / old.local).unlink(missing_ok=True)
            (folder / f"{old.local}.part").unlink(missing_ok=True)


def _check_room(folder: Path, left: Iterable[HubFile]) -> None:
    here = sum(p.stat().st_size for f in left if (p := folder / f"{f.local}.part").exists())
    wanted = sum(f.nbytes for f in left) - here
    free = shutil.disk_usage(folder).free
    if wanted and free < wanted + SPARE_BYTES:
        raise CapacityError(
            f"{folder} has {free / 1e9:.2f} GB free",
            expected=f"{(wanted + SPARE_BYTES) / 1e9:.2f} GB for what is still to come",
            fix="free some space or set HEADRACE_HOME to another disk",
        )
