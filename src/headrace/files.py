"""Small files that others wrote, read without trust: never more than a limit, and no device or
pipe of a downloaded folder is waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

SMALL_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20


def read_bytes(path: Path, most: int = SMALL_BYTES, *, pipes: bool = False) -> bytes:
    """All of a regular file of at most `most` bytes. `pipes`: a user may name a pipe, too.

    Raises OSError, whose `strerror` says what is wrong.
    """
    # Not blocking: opening a pipe that nobody writes to would never end.
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if pipes else os.O_NONBLOCK)
    with os.fdopen(os.open(path, flags), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or (pipes and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)))):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        parts: list[bytes] = []
        while part := file.read(CHUNK_BYTES):  # a single read would allocate all that it may read
            parts.append(part)
            if sum(map(len, parts)) > most:
                raise OSError(errno.EFBIG, f"More than {most} bytes", str(path))
    return b"".join(parts)


def read_text(path: Path, most: int = SMALL_BYTES, *, pipes: bool = False) -> str:
    """The same as UTF-8. Raises UnicodeDecodeError, too."""
    return read_bytes(path, most, pipes=pipes).decode("utf-8")


def check_regular(path: Path) -> None:
    """Raises OSError for what is no regular file, before it is opened."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
