"""`headrace serve`: one model behind the HTTP API."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.cli import ahead, options
from headrace.config import EngineConfig
from headrace.errors import ConfigError

HOST, PORT = "127.0.0.1", 8713
SERVER = "Server"

ServedName = Annotated[
    list[str] | None,
    typer.Option(
        help="Serve under this name only, may be repeated; else any name is accepted.",
        rich_help_panel=SERVER,
    ),
]
Alias = Annotated[
    list[str] | None,
    typer.Option(
        help="Also serve under this name or pattern (claude-*), may be repeated.",
        rich_help_panel=SERVER,
    ),
]

log = logging.getLogger("headrace.serve")


def serve(
    model: options.Model = options.DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=SERVER)] = HOST,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 takes a free one.", rich_help_panel=SERVER)
    ] = PORT,
    api_key: Annotated[
        str | None,
        typer.Option(help="Ask for this key; else no key is needed.", rich_help_panel=SERVER),
    ] = None,
    served_name: ServedName = None,
    alias: Alias = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another Host name that a loopback server answers to.", rich_help_panel=SERVER
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Web pages of this origin may call.", rich_help_panel=SERVER),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds that running answers get on a stop.", rich_help_panel=SERVER
        ),
    ] = 10.0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    context: options.Context = None,
    threads: options.Threads = None,
    config: options.ConfigFile = None,
    settings: options.Settings = None,
) -> None:
    """Serve a model over the OpenAI and Anthropic APIs."""
    from headrace.api.guard import Door, is_loopback  # noqa: PLC0415 start-up time
    from headrace.cli.environment import start_logging  # noqa: PLC0415 start-up time

    start_logging("info")
    if api_key == "":
        raise ConfigError("--api-key is empty", expected="a key, or no --api-key at all")
    engine = options.engine_config(
        config, settings, device=device, dtype=dtype, context=context, threads=threads
    )
    door = Door(
        api_key=api_key,
        loopback=is_loopback(host),
        hosts=tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
    )
    names = Names(tuple(served_name or ()), tuple(alias or ()))
    _serve(model, engine, door, names, host=host, port=port, grace_s=grace)


@dataclass(frozen=True, slots=True)
class Names:
    """As the user gave them; an alias with a wildcard is a pattern."""

    served: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(alias for alias in self.aliases if "*" in alias or "?" in alias)

    def listed(self, name: str) -> tuple[str, ...]:
        """All names of a model that is called `name`, its id first."""
        plain = (alias for alias in self.aliases if alias not in self.patterns)
        return tuple(dict.fromkeys((*(self.served or (name,)), *plain)))


def _serve(
    model: str,
    engine: EngineConfig,
    door: object,
    names: Names,
    *,
    host: str,
    port: int,
    grace_s: float,
) -> None:
    ahead.begin()
    from headrace.api.app import create_app  # noqa: PLC0415 start-up time
    from headrace.api.guard import Door  # noqa: PLC0415 start-up time
    from headrace.api.served import Served  # noqa: PLC0415 start-up time
    from headrace.api.server import Ready, bind, run  # noqa: PLC0415 start-up time
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time
    from headrace.cli.model import load, name_of, resolve  # noqa: PLC0415 start-up time

    assert isinstance(door, Door)
    sock = bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{sock.getsockname()[1]}"
    if not door.loopback and door.api_key is None:
        log.warning("anyone who reaches %s may use this server: give it an --api-key", url)

    def prepare() -> Ready:
        with Meter("loading") as meter:
            folder = resolve(model, meter.show)
            name = name_of(model, folder)
            made = load(folder, engine, meter.show, name=name)
        served = Served(
            names.listed(name),
            made.engine.context,
            made.defaults,
            exact=bool(names.served),
            patterns=names.patterns,
        )
        app = create_app(made.session, served, door=door)
        log.info("serving %s at %s (OpenAI base URL %s/v1)", served.id, url, url)
        return Ready(app, made.session, made.client.close)

    cut = run(sock, prepare, grace_s=grace_s)
    log.info("stopped%s", f"; {cut} answers were cut off" if cut else "")
