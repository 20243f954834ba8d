"""The command line: every error ends as one message on standard error and exit code 1 or 2."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from headrace.cli.complaint import complain
from headrace.cli.environment import debugging
from headrace.errors import HeadraceError

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

# In the order of the help: the module below headrace.cli, and the command or group in it.
COMMANDS = {
    "serve": ("serve", "serve"),
    "chat": ("chat", "chat"),
    "run": ("run", "run"),
    "plan": ("plan", "plan"),
    "pull": ("pull", "pull"),
    "convert": ("convert", "convert"),
    "verify": ("convert", "verify"),
    "measure": ("measure", "measure"),
    "ctl": ("ctl", "app"),
    "simulate": ("simulate", "simulate"),
    "launch": ("launch", "launch"),
    "doctor": ("doctor", "doctor"),
    "bench": ("bench", "app"),
}


def _app(arguments: Sequence[str]) -> typer.Typer:
    """With the one command that is named, or with all: each takes time to import and to build."""
    app = typer.Typer(
        name="headrace",
        help="Serve Mixture-of-Experts models on the machine you own.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    first = arguments[0] if arguments else ""
    for name in [first] if first in COMMANDS else COMMANDS:
        module, attribute = COMMANDS[name]
        command = vars(import_module(f"headrace.cli.{module}"))[attribute]
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 start-up time

        typer.echo(version("headrace"))
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Never returns: exits 0 done, 1 failed, 2 bad usage or config, 130 interrupted."""
    _open_closed_streams()
    code = _code(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            code = _refused(error)
        # Whoever read us has left. The interpreter must not try to flush again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if arguments is None:
        # Everything is closed by now, and taking torch's modules apart takes half a second.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _open_closed_streams() -> None:
    """Whoever started us with one closed wants nothing of it; a file must not get its number."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _refused(error: OSError) -> int:
    what = error.strerror or str(error) or type(error).__name__
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    complain(
        HeadraceError(
            f"{error.filename}: {what}" if error.filename else f"the system refused: {what}",
            fix="free some disk space" if full else "",
        )
    )
    return 1


def _code(arguments: list[str]) -> int:
    try:
        _app(arguments)(arguments, prog_name="headrace")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except HeadraceError as error:
        complain(error)
        return error.exit_code
    except OSError as error:  # of the machine: a full disk, a folder that is not ours, no network
        if debugging():
            raise
        return _refused(error)
    except MemoryError as error:
        complain(
            HeadraceError(str(error) or "out of memory", fix="free memory, or allow more of it")
        )
        return 1
    except Exception as error:  # ours: a user gets one line, and the traceback on request
        if debugging():
            raise
        sys.stderr.write(
            f"headrace: internal error: {type(error).__name__}: {error}\n"
            "  this is a fault of headrace; HEADRACE_LOG=debug shows where it happened\n"
        )
        return 1
    return 0
