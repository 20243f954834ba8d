"""Server-sent events, and the watch over their reader: never silent for long, never for nobody.

Whoever leaves, or stops reading for `stall_s`, cancels the work behind the reply. What waits for a
slow reader is bounded by the transport's buffer: each frame is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


@dataclass(frozen=True, slots=True)
class Patience:
    """`ping_s`: silence before a sign of life is sent. `stall_s`: how long one write may wait."""

    ping_s: float = 10.0
    stall_s: float = 60.0


def frame(value: object, *, event: str = "") -> bytes:
    """One event of JSON data, with a name where the dialect has names."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode()


def comment(text: str) -> bytes:
    """For whoever looks at the stream; clients leave it out."""
    return f": {text}\n\n".encode()


class Gone(Exception):
    """The client has left or no longer reads."""


class EventStream:
    """An ASGI response made of frames; `ping` fills silences, `close` is always called last."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        close: Callable[[], None],
        ping: Callable[[], bytes],
        patience: Patience,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self._frames = frames
        self._close = close
        self._ping = ping
        self._patience = patience
        self._headers = [*HEADERS, *headers]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(self._reply(send), receive)
        except Gone:
            return
        finally:
            await self._frames.aclose()
            # Frames that were never started have no end of their own.
            self._close()

    async def _reply(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        step: asyncio.Task[bytes] | None = None
        try:
            while True:
                step = step or asyncio.ensure_future(_next(self._frames))
                await asyncio.wait({step}, timeout=self._patience.ping_s)
                if not step.done():
                    await self._write(send, self._ping())
                    continue
                data = step.result()
                step = None
                if not data:
                    break
                await self._write(send, data)
        finally:
            if step is not None and not step.done():
                step.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await step
        await self._write(send, b"", more=False)

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        message = {"type": "http.response.body", "body": data, "more_body": more}
        try:
            async with asyncio.timeout(self._patience.stall_s):
                await send(message)
        except TimeoutError as error:
            raise Gone from error


async def _next(frames: AsyncGenerator[bytes, None]) -> bytes:
    """The next frame, empty at the end."""
    return await anext(frames, b"")


async def until_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`; Gone, with the work cancelled, if the client leaves first.

    The body of the request must have been read before.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for one in (task, left):
            if not one.done():
                one.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await one


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
