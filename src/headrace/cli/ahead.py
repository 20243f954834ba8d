"""Start-up: what can be done beside Python's imports, and what need not be done at all."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from headrace import _native


def begin() -> None:
    """Load torch's largest library beside what Python does before it imports torch.

    Relocating its 430 MB takes 0.2 s, in which the import would hold the interpreter.
    """
    spec = find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        library = Path(folder) / "lib" / "libtorch_cpu.so"
        if library.is_file():
            _native.load_ahead(str(library))


@contextmanager
def lasting() -> Iterator[None]:
    """What is made inside stays until the end, so nobody looks for garbage in it, then or later.

    Searching while torch is imported takes a tenth of its time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
