"""Grammars are compiled a few at a time, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted import scripted_server
from serving import PlainRenderer, ScriptedClient

from headrace.api import session as api_session
from headrace.api.call import Call, RawPrompts
from headrace.api.session import Session
from headrace.chat import grammar
from headrace.chat.trial import TRIALS, Trials
from headrace.chat.types import ChatRequest, Message, OutputFormat, Tool, ToolChoice
from headrace.engine.request import Sampling
from headrace.errors import CapacityError

sys.path.append(str(Path(__file__).parents[1] / "chat"))
from families import FAMILIES, renderer_of

USER = (Message("user", "q"),)
JSON = OutputFormat("json_object")
HELD = [
    ChatRequest(USER, format=JSON),
    ChatRequest(USER, (Tool("f"),), tool_choice=ToolChoice("required")),
    ChatRequest(USER, (Tool("f", strict=True),)),
    ChatRequest(USER, (Tool("f"),), parallel_tool_calls=False),
    RawPrompts(("q",), format=JSON),
]
FREE = [ChatRequest(USER), ChatRequest(USER, (Tool("f"),)), RawPrompts(("q",))]


class Slow(PlainRenderer):
    """Its grammars are compiled when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.inside = self.most = 0

    def constraint(self, request: Any, prompt: Any) -> None:
        if request in FREE:
            return
        self.inside += 1
        self.most = max(self.most, self.inside)
        assert self.go.wait(20)
        self.inside -= 1

    def completion_constraint(self, output: OutputFormat) -> None:
        self.constraint(None if output == JSON else FREE[0], None)


def asked(ask: Any) -> Call:
    return Call(ask, Sampling(max_tokens=2))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def scenario() -> None:
    renderer = Slow()
    session = Session(renderer, ScriptedClient(renderer.tokenizer), context=100)
    held = [asyncio.ensure_future(session.open(asked(ask))) for ask in HELD * 2]
    await until(lambda: renderer.inside == TRIALS)
    for ask in FREE * 20:  # more than there are threads
        (await session.open(asked(ask))).close()
    assert renderer.inside == TRIALS
    waiting = held[-1]
    waiting.cancel()  # its client has left
    running = held[0]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0.02)
    assert renderer.inside == TRIALS  # the thread goes on, and no other begins
    renderer.go.set()
    turns = await asyncio.gather(*held, return_exceptions=True)
    assert sum(isinstance(turn, asyncio.CancelledError) for turn in turns) == 2
    for turn in turns:
        if isinstance(turn, api_session.Turn):
            turn.close()
    assert renderer.most == TRIALS
    assert not session.turns


def test_others_do_not_wait_and_who_leaves_gives_up_the_place() -> None:
    asyncio.run(scenario())


def test_so_many_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_session, "MAX_TO_COMPILE", 3)

    async def crowd() -> None:
        renderer = Slow()
        session = Session(renderer, ScriptedClient(renderer.tokenizer), context=100)
        held = [asyncio.ensure_future(session.open(asked(HELD[0]))) for _ in range(TRIALS + 3)]
        await until(lambda: renderer.inside == TRIALS)
        with pytest.raises(CapacityError, match="3 other grammars") as refused:
            await session.open(asked(HELD[0]))
        assert refused.value.http_status == 429
        renderer.go.set()
        for turn in await asyncio.gather(*held):
            turn.close()
        (await session.open(asked(HELD[0]))).close()

    asyncio.run(crowd())


def test_a_schema_of_endless_work_is_refused_in_each_dialect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(seconds=0.1)
    monkeypatch.setattr(grammar, "_TRIALS", trials)
    schema = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 99_999_989}}}
    named = {"name": "n", "schema": schema}
    said = [{"role": "user", "content": "hi"}]
    chat = {"messages": said, "response_format": {"type": "json_schema", "json_schema": named}}
    responses = {"input": "hi", "text": {"format": {"type": "json_schema", **named}}}
    output = {"format": {"type": "json_schema", "schema": schema}}
    messages = {"messages": said, "max_tokens": 9, "output_config": output}
    bodies = {"chat/completions": chat, "responses": responses, "messages": messages}
    renderer = renderer_of(FAMILIES["hermes"])
    with scripted_server(tmp_path, lambda _: "Hello.", renderer=renderer) as server:
        for path, body in bodies.items():
            for stream in (False, True):
                asked = {**body, "stream": stream}
                reply = httpx.post(f"{server.url}/v1/{path}", json=asked, timeout=60)
                assert reply.status_code == 400, reply.text
                error = reply.json()["error"]
                assert error["type"] == "invalid_request_error"
                assert "more than 0.1 s" in error["message"]
        plain = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": said}, timeout=60)
        assert plain.status_code == 200
    trials.close()
    assert trials.started == 6
