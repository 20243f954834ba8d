"""What is already written of an unfinished FTW folder, so that a conversion goes on after a kill.

A line is added only when its entry is on the disk; a torn last line is as if it were not there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from headrace.errors import ConfigError
from headrace.weights.ftw import JOURNAL

_LINE = re.compile(r"(\d{1,9}) ([0-9a-f]{8})")


class Journal:
    """Checksums of finished entries by their number; one process at a time holds it.

    `mark` says what is converted and how it is laid out: only the same conversion goes on.
    """

    def __init__(self, folder: Path, mark: object) -> None:
        """Raises ConfigError if another process is converting, or another source was."""
        text = json.dumps(mark, sort_keys=True)
        self._head = head = f"ftw {hashlib.sha256(text.encode()).hexdigest()}"
        self._path = folder / JOURNAL
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock(folder)
            lines = self._lines(head, folder)
        except BaseException:
            os.close(self._fd)
            raise
        self.sums = {int(n): int(crc, 16) for n, crc in lines}

    def add(self, sums: Sequence[tuple[int, int]]) -> None:
        """These entries are on the disk."""
        self.sums.update(sums)
        self._append("".join(f"{number} {crc:08x}\n" for number, crc in sums))

    def forget(self, numbers: Iterable[int]) -> None:
        """These entries are not on the disk after all."""
        lost = self.sums.keys() & set(numbers)
        if not lost:
            return
        os.ftruncate(self._fd, len(self._head) + 1)
        os.lseek(self._fd, 0, os.SEEK_END)
        kept, self.sums = {n: crc for n, crc in self.sums.items() if n not in lost}, {}
        self.add(list(kept.items()))

    def remove(self) -> None:
        """The conversion is complete."""
        self._path.unlink()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def _lock(self, folder: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"{folder} is being converted by another process", fix="wait for it, or stop it"
            ) from error

    def _lines(self, head: str, folder: Path) -> list[tuple[str, str]]:
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0).decode("ascii", "replace")
        whole = data[: data.rfind("\n") + 1]
        first, *rest = whole.splitlines() or [""]
        if first and first != head:
            raise ConfigError(
                f"{folder} holds an unfinished conversion of something else, or of a source that "
                "has changed",
                fix="delete the folder, or choose another destination",
            )
        os.ftruncate(self._fd, len(whole))
        os.lseek(self._fd, 0, os.SEEK_END)
        if not first:
            self._append(head + "\n")
        return [m.groups() for line in rest if (m := _LINE.fullmatch(line))]  # type: ignore[misc]

    def _append(self, text: str) -> None:
        os.write(self._fd, text.encode())
        os.fsync(self._fd)
