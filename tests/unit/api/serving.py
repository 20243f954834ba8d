"""A scripted engine and what a test sees of its server: all but the model is the product."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from headrace.api.reading import RawReader
from headrace.api.session import Session
from headrace.chat.tokenizer import Tokenizer, TokenizerFiles
from headrace.chat.types import ChatRequest, OutputFormat, Prompt
from headrace.engine.request import Finish, Logprob, Request, RequestId, TokenEvent
from headrace.errors import HeadraceError

SPECIAL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]


def byte_tokenizer() -> Tokenizer:
    """One token a byte, and the marks of a chat."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL[:2])
    backend.add_tokens(SPECIAL[2:])
    files = TokenizerFiles(config={"eos_token": "<|im_end|>"})
    return Tokenizer.from_json(backend.to_str(), files)


class PlainRenderer:
    """The last message is the prompt, and the answer is text."""

    def __init__(self) -> None:
        self.tokenizer = byte_tokenizer()
        self.seen: list[ChatRequest] = []

    def prompt(self, request: ChatRequest, turns: object = None) -> Prompt:
        self.seen.append(request)
        text = request.messages[-1].content
        tokens = self.tokenizer.encode(text, special=False)
        return Prompt(tuple(tokens), text, in_reasoning=False)

    def reader(self, request: ChatRequest, prompt: Prompt) -> RawReader:
        return RawReader(self.tokenizer, request.stop)

    def constraint(self, request: ChatRequest, prompt: Prompt) -> None:
        return None

    def completion_prompt(self, text: str) -> Prompt:
        return Prompt(tuple(self.tokenizer.encode(text, special=True)), text, in_reasoning=False)

    def completion_constraint(self, output: OutputFormat) -> None:
        return None


@dataclass
class Script:
    """What the engine does with every request: `text`, one token per `pace_s`, then its end."""

    text: str = "Hello there"
    pace_s: float = 0.0
    wait_s: float = 0.0  # before the first token
    forever: bool = False
    error: HeadraceError | None = None  # after the text
    refuse: HeadraceError | None = None  # at submit


class ScriptedStream:
    def __init__(self, id: RequestId, script: Script, request: Request, engine: Any) -> None:
        self.id = id
        self._script, self._request, self._engine = script, request, engine
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._engine.running.discard(self.id)
        self._engine.cancelled.append(self.id)

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        script, sampling = self._script, self._request.sampling
        await asyncio.sleep(script.wait_s)
        limit = sampling.max_tokens or 1 << 20
        tokens = self._engine.tokenizer.encode(script.text, special=True)
        for n, token in enumerate(itertools.cycle(tokens) if script.forever else tokens, 1):
            await asyncio.sleep(script.pace_s)
            if self._cancelled:
                yield TokenEvent(self.id, None, Finish.CANCELLED)
                return
            top = ((token, -0.5), (0, -1.5), (1, -2.5), *((i, -9.0) for i in range(20)))[
                : sampling.logprobs or 0
            ]
            logprob = None if sampling.logprobs is None else Logprob(token, -0.5, top)
            self._engine.made += 1
            if n == limit:
                self._engine.running.discard(self.id)
                yield TokenEvent(self.id, token, Finish.LENGTH, logprob)
                return
            yield TokenEvent(self.id, token, None, logprob)
        self._engine.running.discard(self.id)
        if script.error is not None:
            yield TokenEvent(self.id, None, Finish.ERROR, error=script.error)
        else:
            yield TokenEvent(self.id, next(iter(self._engine.tokenizer.eos_ids)), Finish.STOP)


class ScriptedClient:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.script = Script()
        self.requests: list[Request] = []
        self.running: set[RequestId] = set()
        self.cancelled: list[RequestId] = []
        self.made = 0
        self.queue: list[dict[str, int]] = []
        self.live: Any = None  # for controls: what they ask of an engine
        self._pool = ThreadPoolExecutor(1)

    def control(self, work: Callable[[Any], Any]) -> Future[Any]:
        return self._pool.submit(work, self)

    def submit(self, request: Request) -> ScriptedStream:
        if self.script.refuse is not None:
            raise self.script.refuse
        self.requests.append(request)
        stream = ScriptedStream(RequestId(len(self.requests)), self.script, request, self)
        self.running.add(stream.id)
        return stream

    def status(self) -> dict[str, Any]:
        buckets = [[0.1, 1], [float("inf"), 2]]
        return {
            "running": len(self.running),
            "queue": self.queue,
            "generated_tokens": self.made,
            "requests": {"stop": 3},
            "step_seconds": {"buckets": buckets, "sum": 0.5, "count": 2},
            "alive": True,
        }


@dataclass
class Running:
    """A server under test."""

    port: int
    engine: ScriptedClient
    renderer: PlainRenderer
    session: Session
    stop: Callable[[], None]
    hasten: Callable[[], None]  # a stop that gives no grace
    cut: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_idle(self, seconds: float = 5.0) -> None:
        """Until nothing runs; fails after a while."""
        until = time.monotonic() + seconds
        while self.engine.running or self.session.turns:
            assert time.monotonic() < until, "sequences still run"
            time.sleep(0.01)
