"""What an operator asks of a running engine: other sizes, a trace of its routing.

All of it happens on the engine's thread between two steps; the event loop only waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.api.errors import Busy
from headrace.api.fields import Fields
from headrace.api.served import Served
from headrace.api.session import Session
from headrace.engine.recorder import MOST_TOKENS
from headrace.planning.elastic import KEYS

if TYPE_CHECKING:
    from headrace.engine.engine import Engine  # with torch

ACTIONS = ("start", "stop")


class Admin:
    """The endpoints below /engine that change something."""

    def __init__(
        self, session: Session, served: Served, body: Callable[[Request], Awaitable[Fields]]
    ) -> None:
        """`body` reads a request's. Raises RequestError."""
        self._session, self._served, self._body = session, served, body
        self._resizing = False

    def routes(self) -> list[Route]:
        return [
            Route("/engine/resize", self.resize, methods=["POST"]),
            Route("/engine/trace", self.trace, methods=["POST"]),
        ]

    async def resize(self, request: Request) -> Response:
        """What is not named stays. 400 beyond the limits, 409 while another resize runs."""
        body = await self._read(request)
        wanted = {key: value for key in KEYS if (value := body.take(key)) is not None}
        body.done()
        if self._resizing:
            raise Busy("another resize is running", expected="one at a time", fix="try again")
        self._resizing = True
        try:
            done = await self._ask(lambda engine: engine.live.ask(wanted))
        finally:
            self._resizing = False
        return JSONResponse(done)

    async def trace(self, request: Request) -> Response:
        """Start recording, or stop and get the trace's file."""
        body = await self._read(request)
        action = body.choice("action", ACTIONS)
        if action is None:
            raise body.fault("action", "missing", expected="one of " + ", ".join(ACTIONS))
        tokens = body.whole("tokens", 1, MOST_TOKENS) if action == "start" else None
        body.done()
        if action == "start":
            most = MOST_TOKENS if tokens is None else tokens
            await self._ask(lambda engine: engine.live.recorder.start(most))
            return JSONResponse({"recording": True, "tokens": most})
        trace = await self._ask(lambda engine: engine.live.recorder.stop())
        # A long trace is tens of megabytes.
        data = await asyncio.to_thread(trace.to_bytes)
        return Response(data, media_type="application/octet-stream")

    async def _read(self, request: Request) -> Fields:
        body = await self._body(request)
        self._served.name_for(body.text("model"))
        return body

    async def _ask(self, work: Callable[[Engine], Any]) -> Any:
        self._session.check_open()
        return await asyncio.wrap_future(self._session.client.control(work))
