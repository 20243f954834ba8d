"""`start`: a server under test, stopped when the test ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from serving import PlainRenderer, Running, Script, ScriptedClient

from headrace.api.app import create_app
from headrace.api.guard import Door
from headrace.api.served import Served
from headrace.api.server import Gate, Ready, bind, serve
from headrace.api.session import Session
from headrace.api.sse import Patience


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """`start(door=..., served=..., patience=..., context=...)` -> Running; stopped at the end."""
    stops: list[Callable[[], None]] = []

    def begin(
        *,
        door: Door | None = None,
        served: Served | None = None,
        patience: Patience | None = None,
        context: int = 1000,
        grace_s: float = 0.0,
        script: Script | None = None,
        renderer: Any = None,
    ) -> Running:
        renderer = renderer or PlainRenderer()
        engine = ScriptedClient(renderer.tokenizer)
        engine.script = script or Script()
        session = Session(renderer, engine, context=context)
        app = create_app(
            session,
            served or Served(("tiny",), context),
            door=door or Door(),
            patience=patience or Patience(),
        )
        sock = bind("127.0.0.1", 0)
        gate = Gate()
        gate.ready = Ready(app, session, lambda: None)
        loop, cut = asyncio.new_event_loop(), []
        stopping, hurry = asyncio.Event(), asyncio.Event()

        def work() -> None:
            work = serve(gate, sock, stopping, grace_s=grace_s, hurry=hurry)
            cut.append(loop.run_until_complete(work))
            loop.close()

        thread = threading.Thread(target=work)
        thread.start()

        def stop() -> None:
            if thread.is_alive():
                loop.call_soon_threadsafe(stopping.set)
                thread.join(20)
            assert not thread.is_alive()

        def hasten() -> None:
            loop.call_soon_threadsafe(stopping.set)
            loop.call_soon_threadsafe(hurry.set)
            stop()

        stops.append(stop)
        return Running(sock.getsockname()[1], engine, renderer, session, stop, hasten, cut)

    yield begin
    for stop in stops:
        stop()
