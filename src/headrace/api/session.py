"""The one place where chat meets engine: a Call becomes sequences, and their tokens become events.

A Turn that is left early, by an error, a stop string or a client that goes, cancels its sequences:
nothing is computed for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.api.call import Call, RawPrompts
from headrace.api.echo import KeptReader
from headrace.api.errors import Unavailable
from headrace.api.reading import Choice, RawReader, Reader, TurnEvent, Usage
from headrace.chat.echo import EchoStore
from headrace.chat.length import ContextOverflow
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.tool_grammar import holds_calls
from headrace.chat.trial import TRIALS
from headrace.chat.truncation import STEPS, fitted
from headrace.chat.types import ChatRequest, OutputFormat, Prompt
from headrace.engine.request import Constraint, Marks, Request, RequestId, Sampling, TokenEvent
from headrace.errors import CapacityError, HeadraceError, RequestError

if TYPE_CHECKING:
    from headrace.engine.engine import Engine  # with torch

T = TypeVar("T")

MAX_TO_COMPILE = 64  # requests that wait while grammars are compiled

# What the engine calls its inputs, and what the client called them.
ENGINE_FIELDS = {"stop_ids": "stop_token_ids", "logprobs": "top_logprobs"}


class Stream(Protocol):
    """One running sequence."""

    @property
    def id(self) -> RequestId: ...
    def cancel(self) -> None: ...
    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...


class Client(Protocol):
    """The engine as its callers see it: thread-safe, and `submit` returns at once."""

    def submit(self, request: Request) -> Stream: ...
    def control(self, work: Callable[[Engine], T]) -> Future[T]: ...
    def status(self) -> dict[str, Any]: ...


class Renders(Protocol):
    """Prompt in, reader out, for one checkpoint. Safe to share between threads."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    def prompt(self, request: ChatRequest, turns: EchoStore | None = None) -> Prompt: ...
    def reader(self, request: ChatRequest, prompt: Prompt) -> Reader: ...
    def constraint(self, request: ChatRequest, prompt: Prompt) -> Constraint | None: ...
    def completion_prompt(self, text: str) -> Prompt: ...
    def completion_constraint(self, output: OutputFormat) -> Constraint | None: ...


@dataclass(frozen=True, slots=True)
class _Draft:
    """One prompt, ready to be submitted `n` times."""

    tokens: tuple[int, ...]
    text: str  # of a raw prompt that is echoed
    pieces: Sequence[tuple[Reader, Constraint | None]]
    anchors: tuple[int, ...] = ()
    marks: Marks = field(default_factory=Marks)


class Session:
    """Opens turns on one engine, until `close`."""

    def __init__(self, renderer: Renders, client: Client, *, context: int) -> None:
        self.renderer = renderer
        self.client = client
        self.context = context
        self.turns: set[Turn] = set()
        self.spoken = EchoStore()  # answers given, for when they come back
        self._closing = False
        self._compiling = asyncio.Semaphore(TRIALS)
        self._to_compile = 0  # requests that wait for that

    async def open(self, call: Call) -> Turn:
        """Renders and submits all of a call's sequences.

        Raises RequestError (400), ContextOverflow, CapacityError (429 with `retry_s`) or
        Unavailable; nothing is left running then.
        """
        self.check_open()
        drafts = await self._drafted(call)
        self.check_open()
        choices: list[Choice] = []
        try:
            with named_fields(call):
                for draft in drafts:
                    for i, (reader, constraint) in enumerate(draft.pieces):
                        sampling = self._nth(call.sampling, i)
                        request = Request(
                            draft.tokens,
                            sampling,
                            constraint,
                            draft.anchors,
                            draft.marks,
                            call.conversation,
                        )
                        stream = self.client.submit(request)
                        handle = reader.handle if isinstance(reader, KeptReader) else ""
                        choice = Choice(
                            len(choices), stream, reader, echo=draft.text, handle=handle
                        )
                        choice.counts_prompt = i == 0
                        choices.append(choice)
        except BaseException:
            for choice in choices:
                choice.cancel()
            raise
        prompt_tokens = sum(len(draft.tokens) for draft in drafts)
        return Turn(choices, prompt_tokens, self.turns)

    def count(self, request: ChatRequest) -> int:
        """Tokens of its prompt, an estimate where they are many more than the context."""
        try:
            if request.truncate:
                return len(self._prompt(request, None, None)[1].tokens)
            return len(self.renderer.prompt(request).tokens)
        except ContextOverflow as error:
            return error.tokens

    def position(self, turn: Turn) -> int | None:
        """How many requests would run before the turn does, itself counted; None once it runs."""
        ids = {choice.id for choice in turn.choices}
        queue = self.client.status().get("queue", ())
        return min((place["position"] for place in queue if place["request"] in ids), default=None)

    def check_open(self) -> None:
        if self._closing:
            raise Unavailable("the server is stopping", fix="try another or try again later")

    def close(self) -> None:
        """Refuses new turns; those running go on."""
        self._closing = True

    async def drain(self, grace_s: float, hurry: asyncio.Event | None = None) -> int:
        """Waits for running turns, until `hurry` at most, then ends the rest with an error. Returns
        how many were cut.
        """
        self.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        while self.turns and loop.time() < until and not (hurry and hurry.is_set()):
            await asyncio.sleep(0.05)
        cut = list(self.turns)
        for turn in cut:
            turn.abort(Unavailable("the server is stopping", fix="send the request again"))
        return len(cut)

    async def _drafted(self, call: Call) -> list[_Draft]:
        """Not on the event loop: templates and tokenizers take up to tens of milliseconds, and
        grammars seconds. Few of those at once, so that the other requests find a thread."""
        ask = call.ask
        free = ask.format.kind == "text"
        if free and (isinstance(ask, RawPrompts) or not holds_calls(ask)):
            return await asyncio.to_thread(self._drafts, call)
        if self._compiling.locked() and self._to_compile >= MAX_TO_COMPILE:
            raise CapacityError(
                f"{self._to_compile} other grammars wait to be compiled",
                fix="try again in a moment",
                retry_s=2.0,
            )
        self._to_compile += 1
        try:
            await self._compiling.acquire()
        finally:
            self._to_compile -= 1
        work = asyncio.ensure_future(asyncio.to_thread(self._drafts, call))
        # A thread goes on when its client leaves, so it keeps its place.
        work.add_done_callback(self._compiled)
        return await asyncio.shield(work)

    def _compiled(self, work: asyncio.Future[list[_Draft]]) -> None:
        self._compiling.release()
        if not work.cancelled():
            work.exception()  # which nobody may be waiting for

    def _drafts(self, call: Call) -> list[_Draft]:
        if isinstance(call.ask, RawPrompts):
            return [self._raw(call.ask, prompt, call.n) for prompt in call.ask.prompts]
        request, prompt = self._prompt(call.ask, call.sampling.max_tokens, self.spoken)
        pieces = [
            (
                KeptReader(self.renderer.reader(request, prompt), self.spoken, prompt),
                self.renderer.constraint(request, prompt),
            )
            for _ in range(call.n)
        ]
        marks = Marks(prompt.cut_before, prompt.cut_after)
        return [_Draft(prompt.tokens, "", pieces, prompt.anchors, marks)]

    def _prompt(
        self, request: ChatRequest, answer: int | None, turns: EchoStore | None
    ) -> tuple[ChatRequest, Prompt]:
        """The prompt, and what it says: the request, or where it asks for that the newest of it."""

        def attempt(asked: ChatRequest, most: int) -> tuple[ChatRequest, Prompt]:
            prompt = self.renderer.prompt(asked, turns)
            if len(prompt.tokens) > most:
                raise ContextOverflow(len(prompt.tokens), self.context, "messages")
            self._check_length(len(prompt.tokens), "messages")
            return asked, prompt

        if not request.truncate:
            return attempt(request, self.context)
        room = self.context // STEPS if answer is None else answer
        return fitted(request, self.context, min(room, self.context // 4), attempt)

    def _raw(self, ask: RawPrompts, prompt: str | tuple[int, ...], n: int) -> _Draft:
        tokenizer = self.renderer.tokenizer
        if isinstance(prompt, str):
            rendered = self.renderer.completion_prompt(prompt)
            tokens, anchors = rendered.tokens, rendered.anchors
        else:
            tokens, anchors = prompt, ()
        self._check_length(len(tokens), "prompt")
        text = ""
        if ask.echo:
            text = prompt if isinstance(prompt, str) else tokenizer.decode(tokens)
        pieces = [
            (RawReader(tokenizer, ask.stop), self.renderer.completion_constraint(ask.format))
            for _ in range(n)
        ]
        return _Draft(tokens, text, pieces, anchors)

    def _nth(self, sampling: Sampling, i: int) -> Sampling:
        """Of answer i: a seed becomes seed + i, and the chat's own end of turn ends it too."""
        ends = frozenset() if sampling.ignore_eos else self.renderer.tokenizer.eos_ids
        seed = None if sampling.seed is None else sampling.seed + i
        return replace(sampling, seed=seed, stop_ids=sampling.stop_ids | ends)

    def _check_length(self, tokens: int, field: str) -> None:
        if tokens >= self.context:
            raise ContextOverflow(tokens, self.context, field)
        if not tokens:
            raise RequestError("an empty prompt", field=field, expected="at least one token")


class Turn:
    """All sequences of one call. Iterate `events` once, then read `usage`; always `close` it."""

    def __init__(self, choices: list[Choice], prompt_tokens: int, open_turns: set[Turn]) -> None:
        self.choices = choices
        self.prompt_tokens = prompt_tokens
        self._open = open_turns
        self._aborted: HeadraceError | None = None
        open_turns.add(self)

    @property
    def handles(self) -> tuple[str, ...]:
        """Per choice, the opaque word under which its turn is found when it comes back."""
        return tuple(choice.handle for choice in self.choices)

    @property
    def usage(self) -> Usage:
        """So far."""
        return Usage(
            prompt=self.prompt_tokens,
            completion=sum(choice.tokens for choice in self.choices),
            reasoning=sum(choice.reasoning_tokens for choice in self.choices),
            cached=sum(choice.cached for choice in self.choices if choice.counts_prompt),
        )

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """Deltas as they come, and one Ended per choice. Raises what ended a sequence in error."""
        source = self.choices[0].events() if len(self.choices) == 1 else self._merged()
        try:
            async for event in source:
                yield event
        except HeadraceError as error:
            if self._aborted is not None:
                raise self._aborted from error
            raise
        finally:
            self.close()
            await source.aclose()

    async def _merged(self) -> AsyncGenerator[TurnEvent, None]:
        """Events of all choices as they come, at most one of each waiting for the reader."""
        sources = [choice.events() for choice in self.choices]
        waiting = {asyncio.ensure_future(_next(source)): source for source in sources}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    event = task.result()
                    source = waiting.pop(task)
                    if event is not None:
                        yield event
                        waiting[asyncio.ensure_future(_next(source))] = source
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def abort(self, error: HeadraceError) -> None:
        """Ends the turn: whoever reads its events gets this error."""
        self._aborted = error
        self.close()

    def close(self) -> None:
        """Cancels what is still running; idempotent."""
        self._open.discard(self)
        for choice in self.choices:
            choice.cancel()


async def _next(source: AsyncGenerator[TurnEvent, None]) -> TurnEvent | None:
    return await anext(source, None)


@contextlib.contextmanager
def named_fields(call: Call) -> Iterator[None]:
    """Engine errors name the client's field, not the engine's."""
    try:
        yield
    except RequestError as error:
        if error.field is not None:
            prompt = "prompt" if isinstance(call.ask, RawPrompts) else "messages"
            error.field = {**ENGINE_FIELDS, "tokens": prompt}.get(error.field, error.field)
        raise
