"""The official client against a real server, a scripted engine and a real template."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import anthropic
import httpx
import pytest
from serving import Script

sys.path.append(str(Path(__file__).parents[1] / "chat"))
from tiny_chat import HERMES_TEMPLATE, byte_level_json, write_checkpoint

from headrace.api.served import Served
from headrace.api.sse import Patience
from headrace.chat.renderer import Renderer
from headrace.errors import CapacityError, DeviceError

HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THOUGHT = f"<think>\nlet me see\n</think>\n\nI look.\n{CALL}"
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return Renderer.from_folder(
        write_checkpoint(folder, byte_level_json(marks=True), HERMES_TEMPLATE)
    )


def client_of(server, **more) -> anthropic.Anthropic:
    given = {"api_key": "k", "max_retries": 0, "timeout": 20, **more}
    return anthropic.Anthropic(base_url=server.url, **given)


def create(server, **more):
    given = {"model": "tiny", "max_tokens": 200, "messages": HI, **more}
    return client_of(server).messages.create(**given)


def events_of(server, **more) -> list[tuple[str, dict]]:
    """Names and data as they are on the wire."""
    body = {"model": "tiny", "max_tokens": 200, "messages": HI, "stream": True, **more}
    with httpx.stream("POST", server.url + "/v1/messages?beta=true", json=body) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        frames = "".join(reply.iter_text()).strip("\n").split("\n\n")
    pairs = [frame.split("\n") for frame in frames]
    assert all(len(pair) == 2 for pair in pairs), frames
    return [(a.removeprefix("event: "), json.loads(b.removeprefix("data: "))) for a, b in pairs]


def test_a_message_is_answered_whole_with_usage(start):
    reply = create(start())
    assert [block.type for block in reply.content] == ["text"]
    assert reply.content[0].text == "Hello there"
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", "tiny")
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (2, 12)
    assert reply.usage.cache_read_input_tokens == 0
    assert reply.usage.cache_creation_input_tokens == 0
    assert reply.id.startswith("msg_")
    assert reply._request_id.startswith("req_")


def test_the_ends_of_an_answer(start):
    server = start(script=Script("one two three four", forever=True))
    cut = create(server, max_tokens=5)
    assert (cut.content[0].text, cut.stop_reason) == ("one t", "max_tokens")
    stopped = create(server, stop_sequences=["nine", "three"])
    assert stopped.content[0].text == "one two "
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "three")
    server.wait_idle()


def test_events_come_in_the_documented_order(start, renderer):
    server = start(renderer=renderer, script=Script(THOUGHT))
    events = events_of(server, tools=[TOOL])
    assert all(name == data["type"] for name, data in events)
    names = [name for name, _ in itertools.groupby(name for name, _ in events)]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert names == ["message_start", *block * 3, "message_delta", "message_stop"]
    message = events[0][1]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"]["input_tokens"] > 2
    starts = [data["content_block"] for name, data in events if name == "content_block_start"]
    assert starts[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert starts[1]["text"] == ""
    assert (starts[2]["name"], starts[2]["input"]) == ("get_weather", {})
    assert starts[2]["id"].isalnum()
    deltas = [data for name, data in events if name == "content_block_delta"]
    assert [d["index"] for d in deltas] == sorted(d["index"] for d in deltas)
    of_first = [d["delta"] for d in deltas if d["index"] == 0]
    assert {d["type"] for d in of_first[:-1]} == {"thinking_delta"}
    assert of_first[-1]["type"] == "signature_delta"
    assert of_first[-1]["signature"].isalnum()
    assert {d["delta"]["type"] for d in deltas if d["index"] == 2} == {"input_json_delta"}
    last = events[-2][1]
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert last["usage"]["output_tokens"] > message["usage"]["output_tokens"]
    assert last["usage"]["output_tokens_details"]["thinking_tokens"] > 0


def test_a_stream_adds_up_to_the_whole_reply(start, renderer):
    server = start(renderer=renderer, script=Script(THOUGHT))
    whole = create(server, tools=[TOOL])
    given = {"model": "tiny", "max_tokens": 200, "messages": HI, "tools": [TOOL]}
    with client_of(server).messages.stream(**given) as stream:
        streamed = stream.get_final_message()
    thinking, text, call = streamed.content
    assert thinking.thinking.strip() == "let me see"
    assert text.text.strip() == "I look."
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    assert streamed.stop_reason == "tool_use"

    def plain(message):
        data = message.model_dump()
        del data["id"]
        for block in data["content"]:
            block.pop("id", None)
            block.pop("signature", None)
        return data

    assert plain(streamed) == plain(whole)


def test_thinking_that_is_to_be_hidden_leaves_its_signature(start, renderer):
    server = start(renderer=renderer, script=Script(THOUGHT))
    adaptive = {"type": "adaptive", "display": "omitted"}
    for message in (
        create(server, tools=[TOOL], thinking=adaptive),
        create(server, tools=[TOOL], thinking=adaptive, stream=False),
    ):
        assert message.content[0].thinking == ""
        assert len(message.content[0].signature) == 32
    deltas = [data.get("delta", {}) for _, data in events_of(server, thinking=adaptive)]
    assert "thinking_delta" not in [delta.get("type") for delta in deltas]


def test_a_turn_goes_back_as_it_came(start, renderer):
    server = start(renderer=renderer, script=Script(THOUGHT))
    first = create(server, tools=[TOOL])
    answer = {"role": "assistant", "content": [b.model_dump() for b in first.content]}
    result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "sunny"}
    talk = [*HI, answer, {"role": "user", "content": [result]}]
    second = create(server, tools=[TOOL], messages=talk)
    assert second.stop_reason == "tool_use"
    prompt = renderer.tokenizer.decode(list(server.engine.requests[-1].tokens), skip_special=False)
    assert "let me see" in prompt
    assert '"city": "Paris"' in prompt
    assert "sunny" in prompt


def test_a_loaded_tool_leaves_the_prompt_before_it_alone_and_can_be_called(start, renderer):
    server = start(renderer=renderer, script=Script(CALL))
    search = {"name": "find_tools", "input_schema": {"type": "object"}}
    late = {**TOOL, "defer_loading": True}
    used = {"type": "tool_use", "id": "c1", "name": "find_tools", "input": {}}
    found = [{"type": "tool_reference", "tool_name": "get_weather"}]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": found}
    talk = [*HI, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    create(server, tools=[search, late])
    reply = create(server, tools=[search, late], messages=talk)
    assert reply.content[0].input == {"city": "Paris"}
    before, after = (
        renderer.tokenizer.decode(list(request.tokens), skip_special=False)
        for request in server.engine.requests
    )
    assert "get_weather" not in before
    assert after.startswith(before.removesuffix("assistant\n"))
    assert after.index("get_weather") > len(before)


def test_counting_agrees_with_usage(start, renderer):
    server = start(renderer=renderer)
    given = {"model": "tiny", "messages": HI, "system": "You are it.", "tools": [TOOL]}
    count = client_of(server).messages.count_tokens(**given)
    reply = client_of(server).messages.create(max_tokens=5, **given)
    assert count.input_tokens == reply.usage.input_tokens > 20


def test_an_answer_is_gone_on_with(start, renderer):
    server = start(renderer=renderer, script=Script(" is B)"))
    said = {"role": "assistant", "content": "The best answer"}
    reply = create(server, messages=[*HI, said])
    assert reply.content[0].text == " is B)"


def test_silence_is_filled_with_pings_also_before_the_first_token(start):
    server = start(script=Script("x", wait_s=0.3), patience=Patience(ping_s=0.05))
    names = [name for name, _ in events_of(server)]
    assert names[:3] == ["ping", "ping", "ping"]
    assert names[-1] == "message_stop"
    with client_of(server).messages.stream(model="m", max_tokens=9, messages=HI) as stream:
        assert stream.get_final_text() == "x"


def test_an_error_in_a_stream_is_an_event(start):
    server = start(script=Script("abc", error=DeviceError("the device is gone")))
    events = events_of(server)
    name, data = events[-1]
    assert (name, data["type"], data["error"]["type"]) == ("error", "error", "api_error")
    assert "the device is gone" in data["error"]["message"]
    with pytest.raises(anthropic.APIStatusError, match="the device is gone"):
        list(client_of(server).messages.create(model="m", max_tokens=9, messages=HI, stream=True))
    with pytest.raises(anthropic.InternalServerError):
        create(server)


def test_refusals_have_the_shape_the_client_knows(start):
    server = start(context=20, served=Served(("tiny",), 20, exact=True))
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(server, messages=[{"role": "user", "content": "long " * 10}])
    assert caught.value.body["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 50 tokens > 20 maximum",
    }
    with pytest.raises(anthropic.NotFoundError) as caught:
        create(server, model="gpt")
    assert caught.value.body["error"]["type"] == "not_found_error"
    server.engine.script = Script(refuse=CapacityError("the queue is full", retry_s=3))
    with pytest.raises(anthropic.RateLimitError) as caught:
        create(server)
    assert caught.value.response.headers["retry-after"] == "3"
    assert httpx.get(server.url + "/v1/messages").json()["error"]["type"] == "invalid_request_error"
    lost = httpx.post(server.url + "/v1/messages/nowhere").json()
    assert lost["error"]["type"] == "not_found_error"


def test_what_is_found_after_parsing_is_named_as_the_client_calls_it(start, renderer):
    server = start(renderer=renderer)
    shape = {"format": {"type": "json_schema", "schema": {"type": 3}}}
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format: "):
        create(server, output_config=shape)


def test_a_large_body_is_answered_too(start):
    server = start(context=1 << 20)
    talk = [{"role": "user", "content": [{"type": "text", "text": "x" * 400_000}]}]
    assert create(server, messages=talk).usage.input_tokens == 400_000


def test_a_client_that_leaves_cancels_its_work(start):
    server = start(script=Script("x", pace_s=0.005, forever=True))
    stream = client_of(server).messages.create(model="m", max_tokens=999, messages=HI, stream=True)
    next(iter(stream))
    stream.close()
    server.wait_idle()
    with pytest.raises(anthropic.APITimeoutError):
        client_of(server, timeout=0.1).messages.create(model="m", max_tokens=999, messages=HI)
    server.wait_idle()


def test_models_are_listed_in_the_shape_of_the_asker(start):
    names = ("tiny", "claude-a", "claude-b")
    server = start(served=Served(names, 1000, exact=True, patterns=("claude-*",)))
    client = client_of(server)
    pages = client.models.list(limit=2)
    assert [m.id for m in pages.data] == ["tiny", "claude-a"]
    assert pages.has_more
    assert [m.id for m in pages] == list(names)
    assert [m.id for m in client.models.list(before_id="claude-b").data] == ["tiny", "claude-a"]
    one = client.models.retrieve("claude-sonnet-4-5")
    assert (one.id, one.type, one.max_input_tokens) == ("claude-sonnet-4-5", "model", 1000)
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("gpt")
    for query in ({"limit": "0"}, {"limit": "x"}, {"after_id": "nobody"}):
        reply = httpx.get(server.url + "/v1/models", params=query, headers=VERSION)
        assert reply.status_code == 400
        assert reply.json()["type"] == "error"
    plain = httpx.get(server.url + "/v1/models").json()
    assert [card["id"] for card in plain["data"]] == list(names)
    assert plain["object"] == "list"
    assert create(server, model="claude-opus-4").model == "claude-opus-4"


def test_a_greeting_is_answered(start):
    server = start()
    for path in ("/api/hello", "/"):
        assert httpx.head(server.url + path).status_code == 200
