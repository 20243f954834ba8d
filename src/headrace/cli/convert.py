"""`headrace convert` and `headrace verify`: FTW folders made and checked. Imports no torch."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options
from headrace.cli.meter import Meter, size
from headrace.cli.model import resolve as folder_of

if TYPE_CHECKING:
    from headrace.weights.checkpoint import Checkpoint


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A model, as `serve` takes it.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The FTW folder to write.")],
    as_json: options.Json = False,
) -> None:
    """Write a model as an FTW folder. Stopped, it goes on when the same command is given again."""
    from headrace.models.source import open_model  # noqa: PLC0415 start-up time
    from headrace.weights.convert import convert as write  # noqa: PLC0415 start-up time

    start = time.monotonic()
    with Meter("converting") as meter:
        model = open_model(folder_of(source, meter.show))
        side = _side_files(model.checkpoint)
        index = write(model.checkpoint, model.plan, target, meter.show, side)
    nbytes, seconds = sum(s.nbytes for s in index.shards), time.monotonic() - start
    if as_json:
        report = {"path": str(target), "bytes": nbytes, "shards": len(index.shards)}
        sys.stdout.write(json.dumps(report | {"seconds": round(seconds, 3)}) + "\n")
    else:
        shards = "1 shard" if len(index.shards) == 1 else f"{len(index.shards)} shards"
        sys.stdout.write(f"{target}: {size(nbytes)} in {shards}, {seconds:.1f} s\n")


def _side_files(checkpoint: Checkpoint) -> dict[str, bytes]:
    """What a GGUF file says in its metadata, as the files that others have beside them."""
    from headrace.chat.gguf import side_files  # noqa: PLC0415 start-up time
    from headrace.weights.gguf_checkpoint import GgufCheckpoint  # noqa: PLC0415 start-up time

    if not isinstance(checkpoint, GgufCheckpoint):
        return {}
    return side_files(checkpoint.metadata, str(checkpoint.path))


def verify(
    model: Annotated[str, typer.Argument(metavar="PATH", help="A model, as `serve` takes it.")],
    as_json: options.Json = False,
) -> None:
    """Check a model's files. FTW: every byte against its checksum; others: their structure."""
    from headrace.models.source import open_model  # noqa: PLC0415 start-up time
    from headrace.weights.ftw import is_ftw  # noqa: PLC0415 start-up time
    from headrace.weights.verify import verify_ftw  # noqa: PLC0415 start-up time

    with Meter("verifying") as meter:
        path = folder_of(model, meter.show)
        faults = verify_ftw(path, meter.show) if is_ftw(path) else []
        facts = None if faults else open_model(path).facts
    if as_json:
        bad = [
            {"entry": f.entry, "file": f.file.name, "offset": f.offset, "found": f.found}
            for f in faults
        ]
        sys.stdout.write(json.dumps({"ok": not faults, "faults": bad}) + "\n")
    elif facts:
        what = "every checksum" if is_ftw(path) else "structure (its files hold no checksums)"
        sys.stdout.write(f"{model}: {size(facts.total_bytes)}, {what} is right\n")
    else:
        sys.stdout.write("".join(f"bad: {fault}\n" for fault in faults))
    if faults:
        raise typer.Exit(1)
