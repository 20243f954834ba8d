"""The only place that reads HEADRACE_HOME and HEADRACE_LOG."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from headrace.errors import ConfigError

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def home() -> Path:
    """Where models and measurements are kept; not created here."""
    named = os.environ.get("HEADRACE_HOME")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "headrace"


def log_level(default: str) -> int:
    """HEADRACE_LOG: debug, info, warning or error. Raises ConfigError on another word."""
    word = os.environ.get("HEADRACE_LOG") or default
    if word.lower() not in LEVELS:
        raise ConfigError(f"HEADRACE_LOG is {word!r}", expected="one of " + ", ".join(LEVELS))
    return LEVELS[word.lower()]


def start_logging(default: str) -> None:
    """Log lines of headrace and its HTTP server on standard error, from this level on."""
    level = log_level(default)
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    for name in ("headrace", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [lines]
        logger.setLevel(level if name == "headrace" else max(level, logging.WARNING))
        logger.propagate = False


def debugging() -> bool:
    return (os.environ.get("HEADRACE_LOG") or "").lower() == "debug"
