"""`headrace pull`: a model from the hub into HEADRACE_HOME. Imports no torch."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.environment import home
from headrace.cli.meter import Meter, size
from headrace.errors import ConfigError


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="REPO[:FILE|QUANT]", help="org/name, or org/name:Q4_K_M for one GGUF model."
        ),
    ],
    as_json: options.Json = False,
) -> None:
    """Download a model: only what is served. Stopped, it goes on with the same command."""
    from headrace.models.registry import check_architecture  # noqa: PLC0415 start-up time
    from headrace.weights import hub  # noqa: PLC0415 start-up time

    reference = hub.Reference.parse(model)
    if reference is None:
        raise ConfigError(
            f"{model!r} is no model of a hub",
            expected="org/name or org/name:Q4_K_M",
            fix="copy the name from the model's page",
        )
    with Meter("downloading") as meter:
        folder = hub.pull(reference, home(), meter.show, check_architecture)
    nbytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if as_json:
        sys.stdout.write(json.dumps({"model": model, "path": str(folder), "bytes": nbytes}) + "\n")
    else:
        sys.stdout.write(f"{model}: {size(nbytes)} in {folder}\n")
