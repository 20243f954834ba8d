"""Start-up: what can be done beside Python's imports, and what need not be done at all."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from headrace import _native

# Kernels in Python for tensors that have no memory, and all decompositions: a quarter of the time
# that importing torch takes. Only tracing and torch.compile use them, which no command does.
UNUSED = "torch._meta_registrations"
OTHERS = ("asyncio", "llguidance", "markupsafe", "psutil", "safetensors", "tokenizers")
TRIED = ("2.13.",)  # versions of torch that import well without it


def begin() -> None:
    """Load torch's largest library beside what Python does before it imports torch.

    Relocating its 430 MB takes 0.2 s, in which the import would hold the interpreter. Libraries are
    loaded one after another, so that others would wait for this one: they come first.
    """
    for package in OTHERS:
        import_module(package)
    folder = _torch_folder()
    library = folder and folder / "lib" / "libtorch_cpu.so"
    if library and library.is_file():
        _native.load_ahead(str(library))


@contextmanager
def importing_torch() -> Iterator[None]:
    """What is made inside stays until the end, so nobody looks for garbage in it, then or later:
    searching takes a tenth of the time of importing torch. UNUSED is left out for good.
    """
    gc.disable()
    if _leaves_out():
        sys.modules[UNUSED] = ModuleType(UNUSED, "Left out: this process never traces or compiles.")
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _torch_folder() -> Path | None:
    """None where torch is not installed."""
    spec = find_spec("torch")
    folders = spec and spec.submodule_search_locations
    return Path(folders[0]) if folders else None


def _leaves_out() -> bool:
    folder = _torch_folder()
    if folder is None or "torch" in sys.modules:
        return False
    try:
        said = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return any(f"__version__ = '{version}" in said for version in TRIED)
