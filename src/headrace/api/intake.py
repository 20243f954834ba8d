"""How many bytes of large bodies are in memory at a time, while they are read and understood.

A body becomes objects of several times its size; a few of the largest at once would be gigabytes.
What a request holds is given back when it has become tokens, and at the latest at its end.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.errors import CapacityError

INTAKE_BYTES = 64 << 20  # two of the largest bodies
SMALL_BYTES = 1 << 18  # a body up to here always has room
RETRY_S = 2.0


class Intake:
    """ASGI middleware: a lease in the state of each request, from one common budget."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self.limit = limit
        self.held = 0  # bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lease = Lease(self)
        scope.setdefault("state", {})["lease"] = lease
        try:
            await self._app(scope, receive, send)
        finally:
            lease.release()


class Lease:
    """What one request holds."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._size = 0
        self._held = 0

    def grow(self, more: int) -> None:
        """`more` bytes of its body have come. Raises CapacityError (429) where there is no room;
        nothing is held then."""
        self._size += more
        wanted = self._size - self._held if self._size > SMALL_BYTES else 0
        if self._intake.held + wanted > self._intake.limit:
            self.release()
            raise CapacityError(
                f"{self._intake.held} bytes of other large requests are being read",
                fix="try again in a moment",
                retry_s=RETRY_S,
            )
        self._intake.held += wanted
        self._held += wanted

    def release(self) -> None:
        """Idempotent."""
        self._intake.held -= self._held
        self._size = self._held = 0
