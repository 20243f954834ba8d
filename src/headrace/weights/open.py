"""Which reader a model's path wants. No torch."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import CheckpointError
from headrace.weights.checkpoint import Checkpoint, open_safetensors
from headrace.weights.ftw import is_ftw, open_ftw
from headrace.weights.gguf import is_gguf
from headrace.weights.gguf_checkpoint import find_gguf, open_gguf


def open_checkpoint(path: Path) -> Checkpoint:
    """A folder with safetensors files, an FTW folder, a GGUF file, or a folder that holds one.

    Reads config and headers only. Raises CheckpointError on anything missing, torn or malformed.
    """
    if is_ftw(path):
        return open_ftw(path)
    if path.is_dir():
        published = next(path.glob("*.safetensors*"), None) is not None
        found = None if published else find_gguf(path)
        return open_safetensors(path) if found is None else open_gguf(found)
    if path.is_file() and (path.suffix == ".gguf" or is_gguf(path)):
        return open_gguf(path)
    raise CheckpointError(
        f"{path} {'is another file' if path.exists() else 'does not exist'}",
        expected="a folder with config.json and .safetensors files, or a GGUF file",
        fix="check the path",
    )
