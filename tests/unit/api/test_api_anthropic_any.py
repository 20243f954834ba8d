"""Whatever the events and whatever the body: a well-formed stream, or a refusal in its shape."""

from __future__ import annotations

import asyncio
import json

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import PlainRenderer, ScriptedClient, byte_tokenizer

from headrace.api.anthropic import parse_message
from headrace.api.anthropic_wire import MessageEncoder
from headrace.api.app import create_app
from headrace.api.dialect import Envelope
from headrace.api.fields import Fields
from headrace.api.reading import Delta, Ended, Usage
from headrace.api.served import Served
from headrace.api.session import Session
from headrace.chat.types import (
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from headrace.engine.request import Sampling

HI = [{"role": "user", "content": "hi"}]

EVENTS = st.lists(
    st.builds(TextDelta, st.text(max_size=3))
    | st.builds(ReasoningDelta, st.text(max_size=3))
    | st.builds(lambda: "call"),
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(EVENTS, st.lists(st.integers(1, 3), max_size=12), st.sampled_from(["stop", "length"]))
def test_every_block_that_starts_stops_and_the_client_adds_it_up(pieces, cuts, reason):
    """Whatever the order of events and their cuts into deltas."""
    events, calls = [], 0
    for piece in pieces:
        if piece == "call":
            events += [ToolCallStart(calls, f"c{calls}", "f"), ToolCallDelta(calls, '{"a"')]
            events += [ToolCallDelta(calls, ": 1}"), ToolCallEnd(calls)]
            calls += 1
        else:
            events.append(piece)
    turns, at = [], 0
    for cut in [*cuts, len(events)]:
        if events[at : at + cut]:
            turns.append(Delta(0, events[at : at + cut]))
        at += cut
    turns.append(Ended(0, "tool_calls" if calls else reason))
    call = parse_message(Fields({"messages": HI, "max_tokens": 5}), Sampling())
    envelope = Envelope("m", byte_tokenizer(), call, 1, ("ab12",))
    usage = Usage(prompt=9, completion=4, reasoning=1, cached=3)
    streamed = b"".join(frame for frame in _stream(MessageEncoder(envelope), turns, usage))
    message = _added_up(streamed)
    whole = MessageEncoder(envelope).whole(turns, usage)
    assert message == {**whole, "id": message["id"]}
    text = "".join(b["text"] for b in message["content"] if b["type"] == "text")
    thought = "".join(b["thinking"] for b in message["content"] if b["type"] == "thinking")
    assert text == "".join(e.text for e in events if isinstance(e, TextDelta))
    assert thought == "".join(e.text for e in events if isinstance(e, ReasoningDelta))
    used = [b for b in message["content"] if b["type"] == "tool_use"]
    assert [b["input"] for b in used] == [{"a": 1}] * calls
    assert (whole["usage"]["input_tokens"], whole["usage"]["cache_read_input_tokens"]) == (6, 3)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "content", "name", "role"]), inner)
    ),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text() | JUNK}
)
NAMES = ("system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences", "odd")
BODY = st.fixed_dictionaries(
    {"messages": st.lists(ENTRY, max_size=3) | JUNK, "max_tokens": st.just(5) | JUNK},
    optional=dict.fromkeys(NAMES, JUNK),
).map(lambda body: json.dumps(body).encode())


@settings(max_examples=60, deadline=None)
@given(BODY | st.binary(max_size=20), st.sampled_from(["", "/count_tokens"]))
def test_any_body_is_answered_or_refused_in_the_dialects_shape(body, path):
    renderer = PlainRenderer()
    session = Session(renderer, ScriptedClient(renderer.tokenizer), context=1000)
    app = create_app(session, Served(("tiny",), 1000))

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/messages" + path, content=body)

    reply = asyncio.run(post())
    if reply.status_code != 200:
        assert reply.status_code == 400
        error = reply.json()
        assert error["type"] == "error"
        assert error["error"]["type"] == "invalid_request_error"
        assert error["error"]["message"]


def _stream(encoder, turns, usage):
    yield from encoder.first(usage)
    for turn in turns:
        yield from encoder.next(turn, usage)
    yield from encoder.last(usage)


def _added_up(data: bytes) -> dict:
    """As the client's own accumulation does it."""
    from anthropic.lib.streaming._messages import accumulate_event
    from anthropic.types import RawMessageStreamEvent
    from pydantic import TypeAdapter

    adapter, snapshot, open_block, bufs = TypeAdapter(RawMessageStreamEvent), None, None, {}
    for frame in data.decode().strip("\n").split("\n\n"):
        value = json.loads(frame.split("\n")[1].removeprefix("data: "))
        if value["type"] == "content_block_start":
            assert open_block is None
            open_block = value["index"]
        elif value["type"].startswith("content_block"):
            assert value["index"] == open_block
            open_block = None if value["type"].endswith("stop") else open_block
        elif value["type"] != "message_start":
            assert open_block is None
        event = adapter.validate_python(value)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=bufs)
    return snapshot.model_dump(mode="json", exclude_unset=True)
