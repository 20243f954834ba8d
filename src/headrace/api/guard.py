"""The door: who may ask (API key, Host, Origin) and how much. What it refuses reaches no route.

A server on loopback answers only to loopback names, so that a page that points its own name at
127.0.0.1 gets nothing; a page of another origin is refused unless the user allowed it.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.api.errors import Forbidden, TooLarge, TooSlow, Unauthorized
from headrace.api.failure import failure
from headrace.api.intake import INTAKE_BYTES, Lease
from headrace.errors import CapacityError, HeadraceError

BODY_BYTES = 32 << 20
BODY_S = 120.0  # for the whole of a body: the largest one at 2 Mbit/s
OPEN_PATHS = ("/health", "/api/hello")


@dataclass(frozen=True, slots=True)
class Door:
    """`hosts`: names besides loopback ones that a loopback server answers to."""

    api_key: str | None = None
    loopback: bool = True
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()  # of pages that may call this server
    body_bytes: int = BODY_BYTES
    body_s: float = BODY_S
    intake_bytes: int = INTAKE_BYTES  # of all bodies that are being read


def is_loopback(host: str) -> bool:
    """Whether this name or address can only mean this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        try:
            self._check_host(headers)
            self._check_origin(origin, headers)
            if scope["method"] == "OPTIONS":
                await self._options(origin, headers)(scope, receive, send)
                return
            self._check_key(scope["path"], headers)
        except HeadraceError as error:
            await failure(error, scope)(scope, receive, send)
            return
        allowed = origin in self._door.origins
        await self._app(scope, receive, _with_origin(send, origin) if allowed and origin else send)

    def _check_host(self, headers: Headers) -> None:
        if not self._door.loopback:
            return
        host = headers.get("host", "")
        name = _hostname(host)
        if name is None or not (is_loopback(name) or name in self._door.hosts):
            raise Forbidden(
                f"the Host {host!r} is not this machine",
                expected="localhost or 127.0.0.1",
                fix="serve with --allow-host NAME to answer to another name",
            )

    def _check_origin(self, origin: str | None, headers: Headers) -> None:
        if origin is None or origin in self._door.origins:
            return
        if urlsplit(origin).netloc != headers.get("host"):
            raise Forbidden(
                f"a page of {origin} may not call this server",
                fix="serve with --allow-origin to let it",
            )

    def _check_key(self, path: str, headers: Headers) -> None:
        key = self._door.api_key
        if key is None or path in OPEN_PATHS:
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise Unauthorized(
                "the API key is wrong" if given else "no API key",
                expected="the header Authorization: Bearer KEY, with the server's --api-key",
            )

    def _options(self, origin: str | None, asked: Headers) -> Response:
        # Vendors' clients send a dozen headers of their own, and their key in one or the other.
        wanted = asked.get("access-control-request-headers", "authorization, content-type")
        headers = {"allow": "GET, HEAD, POST, DELETE, OPTIONS"}
        if origin is not None and origin in self._door.origins:
            headers |= {
                "access-control-allow-origin": origin,
                "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
                "access-control-allow-headers": wanted,
                "access-control-max-age": "600",
                "vary": "origin",
            }
        return Response(status_code=204, headers=headers)


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _with_origin(send: Send, origin: str) -> Callable[[Message], Awaitable[None]]:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers.add_vary_header("origin")
        await send(message)

    return wrapped


async def read_body(request: Request, limit: int, limit_s: float) -> bytes:
    """The whole body, never holding more than `limit` bytes, nor than its lease has room for.

    Raises TooLarge (413), TooSlow (408), CapacityError (429), and starlette's ClientDisconnect.
    """
    parts: list[bytes] = []
    size = 0
    lease: Lease = request.state.lease
    full: CapacityError | None = None
    try:
        async with asyncio.timeout(limit_s):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    full = full or _no_room(lease, len(part))
                    parts.append(part)
                if full or size > limit:
                    parts.clear()
                    lease.release()
                if size > 4 * limit:
                    break
                # Up to there the rest is read and dropped: a reply to a client that still writes
                # is lost.
    except TimeoutError as error:
        raise TooSlow(
            f"{size} bytes of the body came in {limit_s:g} s", expected="the whole of it"
        ) from error
    if full is not None and size <= limit:
        raise full
    if size > limit:
        raise TooLarge(f"a body of {size} bytes or more", expected=f"at most {limit} bytes")
    return b"".join(parts)


def _no_room(lease: Lease, more: int) -> CapacityError | None:
    try:
        lease.grow(more)
    except CapacityError as error:
        return error
    return None
