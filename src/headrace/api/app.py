"""The application: routes behind the door, and every error in the dialect's own shape."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.api.errors import NotFound, WrongMethod
from headrace.api.failure import failure, left
from headrace.api.guard import Door, Guard
from headrace.api.intake import Intake
from headrace.api.metrics import ServerMetrics
from headrace.api.routes import Api
from headrace.api.served import Served
from headrace.api.session import Session
from headrace.api.sse import Patience
from headrace.errors import HeadraceError

log = logging.getLogger("headrace.api")

QUIET = ("/health", "/metrics", "/engine/status")  # polled all the time


def create_app(
    session: Session,
    served: Served,
    *,
    door: Door = Door(),  # noqa: B008 frozen
    patience: Patience = Patience(),  # noqa: B008 frozen
) -> ASGIApp:
    """An ASGI application that serves one model."""
    api = Api(session, served, door=door, patience=patience)
    app = Starlette(
        routes=api.routes(),
        middleware=[
            Middleware(Guard, door=door),
            Middleware(Intake, limit=door.intake_bytes),
        ],
        exception_handlers={
            HeadraceError: _failed,
            HTTPException: _http_error,
            ClientDisconnect: _left,
            Exception: _our_mistake,
        },
    )
    return Counted(app, api.metrics)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    if error.http_status >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error)
    return failure(error, request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router raises: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    fault: HeadraceError = NotFound(f"there is no {where}", fix="see docs/api.md")
    if error.status_code == 405:
        fault = WrongMethod(f"{where} is not offered", fix="see docs/api.md")
    reply = failure(fault, request.scope)
    reply.headers.update(error.headers or {})
    return reply


async def _left(_request: Request, _error: Exception) -> Response:
    return left()


async def _our_mistake(request: Request, error: Exception) -> Response:
    # The server's log gets the traceback: starlette raises the error again after this reply.
    return failure(
        HeadraceError(
            f"an internal error ({type(error).__name__})",
            fix="this is a fault of the server: please report it with the server's log",
        ),
        request.scope,
    )


class Counted:
    """ASGI middleware: one count and one line of the log per reply."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, self._counting(scope, send))

    def _counting(self, scope: Scope, send: Send) -> Callable[[Message], Awaitable[None]]:
        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The route as declared: a path made up by a client must not become a time series.
                route = scope.get("route")
                path = route.path if route is not None else "other"
                self._metrics.replied(path, message["status"])
                level = logging.DEBUG if path in QUIET else logging.INFO
                log.log(level, "%s %a %s", scope["method"], scope["path"], message["status"])
            await send(message)

        return counting
