"""Chat completions and completions as dialects: chunks framed, `[DONE]` at every end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.api.dialect import Dialect, Envelope, Json
from headrace.api.errors import error_body
from headrace.api.openai import parse_chat, parse_completion
from headrace.api.openai_wire import (
    Answer,
    ChatChunks,
    Chunks,
    CompletionChunks,
    chat_completion,
    completion,
    custom_names,
)
from headrace.api.reading import TurnEvent, Usage
from headrace.api.sse import DONE, comment, frame
from headrace.errors import HeadraceError

Whole = Callable[[Envelope, list[Answer], Usage], Json]


class OpenAiEncoder:
    def __init__(self, envelope: Envelope, chunks: Chunks, whole: Whole) -> None:
        self._envelope = envelope
        self._chunks = chunks
        self._whole = whole

    def first(self, usage: Usage) -> Iterator[bytes]:
        return map(frame, self._chunks.first())

    def next(self, event: TurnEvent, usage: Usage) -> Iterator[bytes]:
        return map(frame, self._chunks.next(event, usage))

    def last(self, usage: Usage) -> Iterator[bytes]:
        yield from map(frame, self._chunks.last(usage))
        yield DONE

    def failed(self, error: HeadraceError, usage: Usage) -> Iterator[bytes]:
        yield frame(error_body(error))
        yield DONE

    def ping(self) -> bytes:
        return comment("keep-alive") + frame(self._chunks.ping())

    def whole(self, events: Sequence[TurnEvent], usage: Usage) -> Json:
        custom = custom_names(self._envelope)
        answers = [Answer(custom) for _ in range(self._envelope.choices)]
        for event in events:
            answers[event.choice].add(event)
        return self._whole(self._envelope, answers, usage)


CHAT = Dialect("chat", parse_chat, lambda e: OpenAiEncoder(e, ChatChunks(e), chat_completion))
COMPLETION = Dialect(
    "completions", parse_completion, lambda e: OpenAiEncoder(e, CompletionChunks(e), completion)
)
