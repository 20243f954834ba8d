"""One call under way: its events, measured, become a dialect's frames or its whole reply."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from headrace.api.dialect import Encoder, Json
from headrace.api.metrics import ServerMetrics
from headrace.api.reading import TurnEvent, Usage
from headrace.api.session import Turn
from headrace.errors import HeadraceError

log = logging.getLogger("headrace.api")


@dataclass(frozen=True, slots=True)
class Run:
    turn: Turn
    encoder: Encoder
    start: float
    metrics: ServerMetrics

    async def whole(self) -> Json:
        """Raises what ended the turn in error."""
        events = [event async for event in self._events()]
        return self.encoder.whole(events, self.turn.usage)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Errors become frames."""
        turn, encoder = self.turn, self.encoder
        try:
            for frame in encoder.first(turn.usage):
                yield frame
            async for event in self._events():
                for frame in encoder.next(event, turn.usage):
                    yield frame
            for frame in encoder.last(turn.usage):
                yield frame
        except HeadraceError as error:
            log.warning("an answer was cut: %s", error)
            for frame in encoder.failed(error, turn.usage):
                yield frame

    async def _events(self) -> AsyncGenerator[TurnEvent, None]:
        """The turn's events, measured; closing this closes the turn."""
        whole = False
        events = self.turn.events()
        try:
            async for event in events:
                yield event
            whole = True
        finally:
            await events.aclose()
            self.turn.close()
            self.metrics.answered(time.monotonic() - self.start, whole=whole)


async def refusal(encoder: Encoder, error: HeadraceError) -> AsyncGenerator[bytes, None]:
    """A stream that begins and at once ends in an error."""
    log.warning("an answer was refused: %s", error)
    nothing = Usage(prompt=0, completion=0)
    for frame in encoder.first(nothing):
        yield frame
    for frame in encoder.failed(error, nothing):
        yield frame
