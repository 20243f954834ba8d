"""`headrace ctl`: look at a running server, resize what it holds, record its routing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.serve import HOST, PORT
from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.cli.remote import Remote

LOOK_S = 0.2  # between two looks at a trace that grows

app = typer.Typer(help="Control a running server.", no_args_is_help=True)

Server = Annotated[str, typer.Option(help="Where `headrace serve` listens.")]
ApiKey = Annotated[str | None, typer.Option(help="Of the server.")]
WHERE = f"http://{HOST}:{PORT}"


@app.command("status")
def status(server: Server = WHERE, api_key: ApiKey = None, as_json: options.Json = False) -> None:
    """What runs, how the memory is divided, and how the experts fare."""
    from headrace.cli.ctl_text import status_text  # noqa: PLC0415 start-up time

    told = _status(_remote(server, api_key))
    sys.stdout.write(json.dumps(told) + "\n" if as_json else status_text(told))


@app.command("resize")
def resize(
    experts: Annotated[
        str | None, typer.Option(help='"2GiB", "120 slots", a share of all ("25%") or "auto".')
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=0, help="Tokens whose keys and values fit.")
    ] = None,
    state_slots: Annotated[
        int | None, typer.Option(min=0, help="Sequences whose state fits, saved ones included.")
    ] = None,
    device_bytes: Annotated[
        str | None, typer.Option(help="Device memory all in all, such as 6GiB; experts follow.")
    ] = None,
    server: Server = WHERE,
    api_key: ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Change sizes between two steps; what is not named stays and no request is lost."""
    from headrace.cli.ctl_text import resize_text  # noqa: PLC0415 start-up time
    from headrace.config import EngineConfig  # noqa: PLC0415 start-up time

    # The unit is read as in the settings.
    memory = EngineConfig.of(**{"memory.device_bytes": device_bytes}).memory
    body: dict[str, Any] = {
        "experts": experts,
        "kv_tokens": kv_tokens,
        "state_slots": state_slots,
        "device_bytes": memory.device_bytes,
    }
    given = {key: value for key, value in body.items() if value is not None}
    done = json.loads(_remote(server, api_key).call("POST", "/engine/resize", given))
    sys.stdout.write(json.dumps(done) + "\n" if as_json else resize_text(done))


@app.command("trace")
def trace(
    file: Annotated[Path, typer.Argument(help="For `headrace simulate FILE`.")],
    tokens: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after so long.")] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop what somebody started, and keep it.")
    ] = False,
    server: Server = WHERE,
    api_key: ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Record which experts are used until Ctrl-C, for some tokens or some seconds."""
    if (tokens is not None) + (seconds is not None) + stop > 1:
        raise ConfigError("several of --tokens, --seconds and --stop", expected="one of them")
    if file.is_dir() or not file.parent.is_dir():
        found = f"{file} is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise ConfigError(found, expected="a file in a folder that exists")
    remote = _remote(server, api_key)
    if not stop:
        wanted = {"action": "start"} if tokens is None else {"action": "start", "tokens": tokens}
        most = json.loads(remote.call("POST", "/engine/trace", wanted))["tokens"]
        _wait(remote, most, seconds)
    data = remote.call("POST", "/engine/trace", {"action": "stop"})
    _report(file, data, as_json=as_json)


def _wait(remote: Remote, most: int, seconds: float | None) -> None:
    """Until the trace is full, the time is over, or Ctrl-C; the trace goes on without us."""
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time

    until = None if seconds is None else time.monotonic() + seconds
    try:
        with Meter("recording tokens") as meter:
            while until is None or time.monotonic() < until:
                live = _status(remote)["engine"]["live"]
                if not live["recording"]:
                    return
                meter.show(live["recorded_tokens"], most)
                left = LOOK_S if until is None else until - time.monotonic()
                time.sleep(min(LOOK_S, max(0.0, left)))
    except KeyboardInterrupt:
        return
    except HeadraceError:
        # Nobody would stop it otherwise; what was wrong is told by the caller's next call.
        return


def _report(file: Path, data: bytes, *, as_json: bool) -> None:
    from headrace.planning.trace import RoutingTrace  # noqa: PLC0415 start-up time

    fresh = file.with_name(file.name + ".new")
    fresh.write_bytes(data)
    try:
        made = RoutingTrace.load(fresh)
    except HeadraceError:
        fresh.unlink()
        raise
    fresh.replace(file)
    if as_json:
        report = {"file": str(file), "steps": len(made.lengths), "tokens": made.tokens}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        sys.stdout.write(f"{file}: {len(made.lengths)} steps, {made.tokens} tokens\n")
        sys.stdout.write(f"{made.model.label()}\n")


def _status(remote: Remote) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(remote.call("GET", "/engine/status"))
    return told


def _remote(server: str, api_key: str | None) -> Remote:
    from headrace.cli.remote import Remote  # noqa: PLC0415 start-up time

    return Remote(server, api_key)
