"""A reader that keeps what it read, so that the turn is known when a client sends it back."""

from __future__ import annotations

import secrets

from headrace.api.reading import Reader
from headrace.chat.echo import EchoStore, SpokenTurn
from headrace.chat.types import ChatEvent, Prompt


class KeptReader:
    """Reads as `reader` does; at the end the turn goes to `turns` under `handle`."""

    def __init__(self, reader: Reader, turns: EchoStore, prompt: Prompt) -> None:
        self.handle = secrets.token_hex(16)
        self._reader = reader
        self._turns = turns
        self._prompt = prompt
        self._tokens: list[int] = []
        self._events: list[ChatEvent] = []

    def feed(self, token: int) -> list[ChatEvent]:
        self._tokens.append(token)
        return self._kept(self._reader.feed(token))

    def finish(self) -> list[ChatEvent]:
        events = self._kept(self._reader.finish())
        turn = SpokenTurn.of(
            self._tokens, self._events, self._prompt, whole=not self._reader.stopped
        )
        self._turns.keep(self.handle, turn)
        return events

    @property
    def stopped(self) -> bool:
        return self._reader.stopped

    @property
    def stop_text(self) -> str | None:
        return self._reader.stop_text

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens

    def _kept(self, events: list[ChatEvent]) -> list[ChatEvent]:
        self._events += events
        return events
