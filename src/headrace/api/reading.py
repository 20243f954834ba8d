"""One sequence's tokens -> chat events, log probabilities, an end and counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from headrace.chat.detokenizer import Detokenizer
from headrace.chat.stops import StopScanner
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.types import ChatEvent, TextDelta, ToolCallEnd, ToolCallStart
from headrace.engine.request import Finish, Logprob, RequestId, TokenEvent
from headrace.errors import DeviceError

Reason = Literal["stop", "length", "tool_calls"]


class Reader(Protocol):
    """Tokens of one answer -> its events."""

    def feed(self, token: int) -> list[ChatEvent]: ...
    def finish(self) -> list[ChatEvent]: ...
    @property
    def stopped(self) -> bool:
        """A stop string is complete: nothing more will come."""
        ...

    @property
    def stop_text(self) -> str | None:
        """The stop string that was met."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far."""
        ...


class Tokens(Protocol):
    @property
    def id(self) -> RequestId: ...
    def cancel(self) -> None: ...
    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...


@dataclass(frozen=True, slots=True)
class Delta:
    """One choice moved on; `logprobs` are those of the tokens behind `events`."""

    choice: int
    events: Sequence[ChatEvent]
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    choice: int
    reason: Reason
    stop_text: str | None = None  # the stop string that ended it


TurnEvent = Delta | Ended


@dataclass(frozen=True, slots=True)
class Usage:
    prompt: int
    completion: int
    reasoning: int = 0
    cached: int = 0


class RawReader:
    """Text without reasoning or calls: what a completion without a template gives."""

    reasoning_tokens = 0

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._text = Detokenizer(tokenizer, after_text=True)
        self._scan = StopScanner(stops)

    def feed(self, token: int) -> list[ChatEvent]:
        return _texts(self._scan.feed(self._text.feed(token)))

    def finish(self) -> list[ChatEvent]:
        return _texts(self._scan.feed(self._text.finish()) + self._scan.finish())

    @property
    def stopped(self) -> bool:
        return self._scan.stopped

    @property
    def stop_text(self) -> str | None:
        return self._scan.found


def _texts(text: str) -> list[ChatEvent]:
    return [TextDelta(text)] if text else []


class Choice:
    """Reads one sequence to its end. `tokens` counts what was generated, the end token included."""

    def __init__(
        self, index: int, stream: Tokens, reader: Reader, *, echo: str = "", handle: str = ""
    ) -> None:
        self.index = index
        self.tokens = 0
        self.cached = 0  # tokens of its prompt that an earlier request had computed
        self.handle = handle  # the opaque word by which the turn is found when it comes back
        self.counts_prompt = True  # further answers to a prompt count as answers only
        self._stream = stream
        self._reader = reader
        self._echo = echo
        self._logprobs: list[Logprob] = []
        self._called = False
        self._ended = False
        self._cancelled = False

    @property
    def id(self) -> RequestId:
        return self._stream.id

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """Everything until Ended. Raises the error that ended the sequence instead."""
        if self._echo:
            yield Delta(self.index, [TextDelta(self._echo)])
        async for event in self._stream:
            for out in self.read(event):
                yield out
            if self._ended:
                return
        if not self._ended:
            raise DeviceError("the engine closed the stream early", fix="see the server's log")

    def read(self, event: TokenEvent) -> list[TurnEvent]:
        """What this token gives; the last result is Ended when the sequence is over.

        Raises the error that ended it.
        """
        if event.finish in (Finish.ERROR, Finish.CANCELLED):
            self._ended = True
            raise event.error or DeviceError(
                "the answer was cut off", fix="the server stopped it; send the request again"
            )
        self.cached = event.cached
        out: list[TurnEvent] = []
        # A token that comes with STOP is the end mark, not text.
        text = event.token is not None and event.finish is not Finish.STOP
        if event.token is not None:
            self.tokens += 1
        if event.token is not None and text:
            if event.logprob is not None:
                self._logprobs.append(event.logprob)
            out += self._delta(self._reader.feed(event.token))
        if event.finish is None and not self._reader.stopped:
            return out
        if event.finish is None:
            self.cancel()
        self._ended = True
        last = self._reader.finish()
        if event.finish is Finish.LENGTH:
            # What its own mark ended came before. Half a command must not be run.
            last = [replace(e, cut=True) if isinstance(e, ToolCallEnd) else e for e in last]
        out += self._delta(last, flush=True)
        out.append(Ended(self.index, self._reason(event.finish), self._reader.stop_text))
        return out

    def cancel(self) -> None:
        """Idempotent; nothing happens when the sequence has ended."""
        if not self._ended and not self._cancelled:
            self._cancelled = True
            self._stream.cancel()

    def _delta(self, events: list[ChatEvent], *, flush: bool = False) -> list[Delta]:
        """Log probabilities wait for the text of their tokens."""
        if not events and not (flush and self._logprobs):
            return []
        self._called = self._called or any(isinstance(e, ToolCallStart) for e in events)
        logprobs, self._logprobs = tuple(self._logprobs), []
        return [Delta(self.index, events, logprobs)]

    def _reason(self, finish: Finish | None) -> Reason:
        if finish is Finish.LENGTH and not self._reader.stopped:
            return "length"
        return "tool_calls" if self._called else "stop"
