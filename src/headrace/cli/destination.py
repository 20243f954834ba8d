"""Where results go, looked at before anything is run: nothing is measured in vain."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import ConfigError


def check_folder(option: str, folder: Path) -> None:
    """Raises ConfigError where `option` names no folder that files can be written to."""
    if not folder.is_dir():
        raise ConfigError(f"{option}: no folder {folder}", fix="make it, or name another one")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: {folder} cannot be written to", fix="name another folder")


def check_file(option: str, file: Path, *, makes_folders: bool = False) -> None:
    """Raises ConfigError where the file could not be written. `makes_folders`: whoever writes it
    makes those that are missing.
    """
    if file.is_dir():
        raise ConfigError(f"{option}: {file} is a folder", expected="the name of a file")
    if file.exists():
        if not os.access(file, os.W_OK):
            raise ConfigError(f"{option}: {file} cannot be written", fix="name another file")
        return
    folder = file.parent
    while makes_folders and not folder.exists():
        folder = folder.parent
    check_folder(option, folder)
