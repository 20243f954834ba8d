"""Headrace serves Mixture-of-Experts models far larger than VRAM on the machine you own.

Importing this package loads no torch; `load` and `Engine` do on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import EngineConfig
from headrace.engine.request import Sampling

if TYPE_CHECKING:
    from headrace.engine.engine import Engine

__all__ = ["Engine", "EngineConfig", "Sampling", "load"]


def load(
    path: str | Path,
    config: EngineConfig | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    home: str | Path | None = None,
) -> Engine:
    """An engine that serves the checkpoint at `path`; `progress` hears (bytes read, bytes in all).

    `home`: where `headrace measure` keeps bandwidths (`HEADRACE_HOME` or `~/.cache/headrace`); None
    = none are used. Raises CheckpointError, ConfigError, CapacityError or DeviceError.
    """
    from headrace.engine.opening import open_engine  # noqa: PLC0415  needs the native extension

    measured = None if home is None else Path(home)
    opening = open_engine(Path(path), config or EngineConfig(), home=measured)
    from headrace.engine.engine import Engine  # noqa: PLC0415  torch takes seconds to import

    return Engine.start(opening, progress)


def __getattr__(name: str) -> object:
    if name == "Engine":
        from headrace.engine.engine import Engine  # noqa: PLC0415  torch takes seconds to import

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
