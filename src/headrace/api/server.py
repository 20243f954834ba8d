"""The HTTP server around the application: sockets, and an end that keeps its promises.

On a stop, new calls get 503 while running ones may finish for `grace_s`; the rest ends in an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from headrace.api.session import Session
from headrace.errors import ConfigError

KEEP_ALIVE_S = 75
LAST_WORDS_S = 5  # for replies that were cut to reach their clients


def bind(host: str, port: int) -> socket.socket:
    """A bound, not yet listening socket, so that a taken port is known before a model is loaded.

    Raises ConfigError.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"cannot find the address {host!r}: {error}",
            expected="a name or address of this machine",
        ) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        if port:
            _check_unused(sock, host, port)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            expected="a free port",
            fix="stop the program that holds it or choose another with --port",
        ) from error
    return sock


def _check_unused(sock: socket.socket, host: str, port: int) -> None:
    """Listening shows whether another program holds the port; connections wait until we accept."""
    sock.listen(1)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again after a clean end."""
        yield


async def serve(
    app: ASGIApp,
    session: Session,
    sock: socket.socket,
    stop: asyncio.Event,
    *,
    grace_s: float = 10.0,
) -> int:
    """Serves until `stop` is set and what runs has ended. Returns how many answers were cut."""
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=LAST_WORDS_S,
        )
    )
    running = asyncio.ensure_future(server.serve(sockets=[sock]))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    cut = await session.drain(grace_s)
    server.should_exit = True
    await running
    return cut


def run(app: ASGIApp, session: Session, sock: socket.socket, *, grace_s: float = 10.0) -> int:
    """Serves until SIGINT or SIGTERM; a second signal ends the grace. Returns as `serve` does."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        work = asyncio.ensure_future(serve(app, session, sock, stop, grace_s=grace_s))

        def on_signal() -> None:
            if stop.is_set():
                work.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        try:
            return await work
        except asyncio.CancelledError:
            return len(session.turns)

    return asyncio.run(main())
