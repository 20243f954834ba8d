"""The command line: every error ends as one message on standard error and exit code 1 or 2."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import typer

from headrace.cli import (
    bench,
    chat,
    convert,
    ctl,
    doctor,
    launch,
    measure,
    plan,
    pull,
    run,
    serve,
    simulate,
)
from headrace.cli.complaint import complain
from headrace.cli.environment import debugging
from headrace.errors import HeadraceError

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

app = typer.Typer(
    name="headrace",
    help="Serve Mixture-of-Experts models on the machine you own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.command("run")(run.run)
app.command("plan")(plan.plan)
app.command("pull")(pull.pull)
app.command("convert")(convert.convert)
app.command("verify")(convert.verify)
app.command("measure")(measure.measure)
app.add_typer(ctl.app, name="ctl")
app.command("simulate")(simulate.simulate)
app.command("launch")(launch.launch)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 start-up time

        typer.echo(version("headrace"))
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Never returns: exits 0 done, 1 failed, 2 bad usage or config, 130 interrupted."""
    code = _code(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has left. The interpreter must not try to flush again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if arguments is None:
        # Everything is closed by now, and taking torch's modules apart takes half a second.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _code(arguments: list[str]) -> int:
    try:
        app(arguments, prog_name="headrace")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except HeadraceError as error:
        complain(error)
        return error.exit_code
    except Exception as error:  # ours: a user gets one line, and the traceback on request
        if debugging():
            raise
        sys.stderr.write(
            f"headrace: internal error: {type(error).__name__}: {error}\n"
            "  this is a fault of headrace; HEADRACE_LOG=debug shows where it happened\n"
        )
        return 1
    return 0
