"""The HTTP server around the application: sockets, and an end that keeps its promises.

While the model loads every call gets 503. On a stop, new calls get 503 while running ones may
finish for `grace_s`; what is left then ends with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.api.errors import Unavailable
from headrace.api.failure import failure
from headrace.api.session import Session
from headrace.errors import ConfigError

KEEP_ALIVE_S = 75
HEAD_S = 30.0  # for the lines of a request before its body
LAST_WORDS_S = 5  # for replies that were cut to reach their clients


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is known before a model is loaded.

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
        sock.listen()
    except OSError as error:
        sock.close()
        raise _deaf(host, port, error) from error
    return sock


def _deaf(host: str, port: int, error: OSError) -> ConfigError:
    found = f"cannot listen on {host} port {port}: {error.strerror or error}"
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(
            found, expected="an address of this machine", fix="choose another --host"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigError(found, expected="a port from 1024 on", fix="choose another --port")
    return ConfigError(
        found, expected="a free port", fix="stop the program that holds it or choose another --port"
    )


@dataclass(frozen=True, slots=True)
class Ready:
    """What loading gives."""

    app: ASGIApp
    session: Session
    close: Callable[[], None]  # of the engine, when all is over


class Gate:
    """An ASGI application that is not there yet."""

    def __init__(self) -> None:
        self.ready: Ready | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.ready is not None:
            await self.ready.app(scope, receive, send)
            return
        loading = Unavailable("the model is loading", fix="try again in a moment", retry_s=2)
        await failure(loading, scope)(scope, receive, send)


class _Connection(H11Protocol):
    """Closed when the head of a request does not come to its end: nobody holds one for nothing."""

    head_s = HEAD_S
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._no_longer()
        elif self._waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_longer()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.head_s, self._give_up)

    def _no_longer(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again after a clean end."""
        yield


async def serve(
    gate: Gate,
    sock: socket.socket,
    stop: asyncio.Event,
    *,
    grace_s: float = 10.0,
    hurry: asyncio.Event | None = None,
) -> int:
    """Serves until `stop` is set and what runs has ended; `hurry` ends the grace. Returns how many
    answers were cut.
    """
    server = _Server(
        uvicorn.Config(
            gate,
            http=_Connection,
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
    cut = 0 if gate.ready is None else await gate.ready.session.drain(grace_s, hurry)
    server.should_exit = True
    await running
    return cut


def run(sock: socket.socket, prepare: Callable[[], Ready], *, grace_s: float = 10.0) -> int:
    """Loads with `prepare` on a thread of its own and serves until SIGINT or SIGTERM.

    A second signal ends the grace. Returns as `serve` does; raises what `prepare` raises.
    """
    gate, faults = Gate(), _Faults()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        stop, hurry = asyncio.Event(), asyncio.Event()
        work = asyncio.ensure_future(serve(gate, sock, stop, grace_s=grace_s, hurry=hurry))

        def on_signal() -> None:
            if stop.is_set():
                hurry.set()
            stop.set()

        def load() -> None:
            with faults:
                gate.ready = prepare()
                return
            loop.call_soon_threadsafe(stop.set)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        threading.Thread(target=load, name="load", daemon=True).start()
        return await work

    try:
        cut = asyncio.run(main())
    finally:
        if gate.ready is not None:
            gate.ready.close()
    faults.check()
    return cut


class _Faults:
    """Carries an exception from one thread to another."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._error = error
        return error is not None

    def check(self) -> None:
        if self._error is not None:
            raise self._error
