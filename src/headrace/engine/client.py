"""The engine thread and the only crossing to it, from any thread or event loop.

A stream's events wait in the stream, so a slow or vanished reader never holds up the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from headrace.engine.engine import Engine
from headrace.engine.request import Finish, Request, RequestId, TokenEvent
from headrace.errors import DeviceError, HeadraceError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Stream:
    """The events of one request, in order; the last one has `finish` set. For one reader.

    Used as a context manager it cancels what its reader did not read to the end.
    """

    def __init__(self, id: RequestId, cancel: Callable[[RequestId], None]) -> None:
        self.id = id
        self._cancel = cancel
        self._events: deque[TokenEvent] = deque()
        self._changed = threading.Condition()
        self._wake: Callable[[], object] | None = None
        self._finished = False  # the last event was read

    def cancel(self) -> None:
        """Ask for the end; the last event, if it is still to come, will say so. Any thread."""
        self._cancel(self.id)

    def push(self, event: TokenEvent) -> None:
        """For the engine thread: never blocks."""
        with self._changed:
            self._events.append(event)
            self._changed.notify()
            wake = self._wake
        if wake is not None:
            # The reader's loop may have ended with the reader.
            with contextlib.suppress(RuntimeError):
                wake()

    def __iter__(self) -> Iterator[TokenEvent]:
        """Blocks for each event."""
        while not self._finished:
            with self._changed:
                while not self._events:
                    self._changed.wait()
            yield self._pop()

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Waits for each event without blocking the running loop."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            self._wake = lambda: loop.call_soon_threadsafe(ready.set)
        while not self._finished:
            ready.clear()
            if self._events:
                await asyncio.sleep(0)  # a reader slower than the engine can be cancelled, too
            else:
                await ready.wait()
            for _ in range(len(self._events)):
                yield self._pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._finished:
            self.cancel()

    def _pop(self) -> TokenEvent:
        event = self._events.popleft()
        self._finished = event.finish is not None
        return event


class EngineClient:
    """Starts the one thread that owns the engine. Everything here may be called from any thread."""

    def __init__(self, engine: Engine, *, audit: bool = False) -> None:
        """`audit`: everything is checked whenever the engine goes idle, for tests."""
        self._engine, self._audit = engine, audit
        self._changed = threading.Condition()
        self._inbox: deque[tuple[RequestId, Request | None]] = deque()  # None = cancel
        self._controls: deque[tuple[Callable[[Engine], Any], Future[Any]]] = deque()
        self._pending = 0  # submits in the inbox
        self._streams: dict[RequestId, Stream] = {}
        self._ids = itertools.count(1)
        self._stopped: HeadraceError | None = None
        self._thread = threading.Thread(target=self._main, name="headrace-engine", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> Engine:
        """For what never changes: plan, context, vocab."""
        return self._engine

    def submit(self, request: Request) -> Stream:
        """Raises RequestError or CapacityError at once, DeviceError when the engine has stopped."""
        with self._changed:
            if self._stopped is not None:
                raise self._stopped
            self._engine.validate(request, pending=self._pending)
            stream = Stream(RequestId(next(self._ids)), self._cancel)
            self._streams[stream.id] = stream
            self._pending += 1
            self._inbox.append((stream.id, request))
            self._changed.notify()
        return stream

    def control(self, work: Callable[[Engine], T]) -> Future[T]:
        """Runs `work` on the engine's thread between two steps, one after the other.

        The future has its result or a HeadraceError: DeviceError where the engine has stopped, or
        where `work` failed in a way of its own. It may be cancelled until `work` begins.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._stopped is not None:
                future.set_exception(self._stopped)
                return future
            self._controls.append((work, future))
            self._changed.notify()
        return future

    def status(self) -> dict[str, Any]:
        return {**self._engine.status(), "alive": self._stopped is None}

    def close(self) -> None:
        """Cancel all requests, end the thread and close the engine. Idempotent."""
        with self._changed:
            if self._stopped is None:
                self._stopped = DeviceError("the engine is shutting down", fix="start it again")
            self._changed.notify()
        self._thread.join()

    def _cancel(self, id: RequestId) -> None:
        with self._changed:
            if id in self._streams and self._stopped is None:
                self._inbox.append((id, None))
                self._changed.notify()

    def _main(self) -> None:
        try:
            while self._turn():
                pass
            self._end(Finish.CANCELLED)
        except BaseException as error:  # whatever ends this thread, nobody may wait for it forever
            log.exception("the engine thread died")
            said = f"{type(error).__name__}: {error}"
            died = DeviceError(f"the engine died: {said}", fix="start it again")
            self._end(Finish.ERROR, died)

    def _turn(self) -> bool:
        with self._changed:
            while self._stopped is None and not self._has_work():
                self._changed.wait()
            if self._stopped is not None:
                return False
            inbox, self._inbox = self._inbox, deque()
            controls = len(self._controls)
            self._pending = 0
        for _ in range(controls):
            self._run(*self._controls.popleft())
        for id, request in inbox:
            if request is None:
                self._engine.cancel(id)
            else:
                self._submit(id, request)
        events = self._engine.step()
        if self._engine.idle:
            self._engine.rest()
            if self._audit:
                self._engine.check()
        for event in events:
            self._deliver(event)
        return True

    def _has_work(self) -> bool:
        return bool(self._inbox or self._controls) or not self._engine.idle

    def _run(self, work: Callable[[Engine], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work(self._engine))
        except HeadraceError as error:
            future.set_exception(error)
        except Exception as error:  # whoever asked gets it; the engine goes on
            log.exception("a control of the engine failed")
            failed = DeviceError(
                f"a control of the engine failed: {type(error).__name__}: {error}",
                fix="see the server's log; the engine goes on",
            )
            future.set_exception(failed)
        except BaseException as error:
            future.set_exception(error)
            raise

    def _submit(self, id: RequestId, request: Request) -> None:
        try:
            self._engine.submit(request, id)
        except HeadraceError as error:  # the queue filled up since the caller was let in
            self._deliver(TokenEvent(id, None, Finish.ERROR, error=error))

    def _deliver(self, event: TokenEvent) -> None:
        with self._changed:
            last = event.finish is not None
            stream = self._streams.pop(event.request) if last else self._streams[event.request]
        stream.push(event)

    def _end(self, finish: Finish, error: HeadraceError | None = None) -> None:
        with self._changed:
            self._stopped = error or self._stopped
            streams = list(self._streams.values())
            self._streams.clear()
            controls, self._controls = self._controls, deque()
        for _, future in controls:
            if future.set_running_or_notify_cancel():
                assert self._stopped is not None
                future.set_exception(self._stopped)
        for stream in streams:
            stream.push(TokenEvent(stream.id, None, finish, error=error))
        self._engine.close()
