"""The official Anthropic client against `headrace serve` with a tiny random model."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

sys.path.append(str(Path(__file__).parent))
from served import Served, serving, tiny_model

HI = [{"role": "user", "content": "What does the miller read?"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
# A random model that may think first would not come to its call.
AT_ONCE = {"thinking": {"type": "disabled"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    flags = ("--context", "600", "--served-name", "tiny", "--alias", "claude-*", "--api-key", "key")
    with serving(folder, *flags) as served:
        yield served


@pytest.fixture(scope="module")
def client(server: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0, timeout=60)


def ask(client: anthropic.Anthropic, **more):
    given = {"model": "claude-x", "messages": HI, "max_tokens": 24, "extra_body": {"seed": 3}}
    return client.messages.create(**(given | more))


def test_a_streamed_answer_is_the_whole_one_and_the_prompt_was_cached(client):
    whole = ask(client)
    given = {"model": "claude-x", "messages": HI, "max_tokens": 24, "extra_body": {"seed": 3}}
    with client.messages.stream(**given) as stream:
        streamed = stream.get_final_message()
    texts = [[(b.type, b.text) for b in m.content if b.type == "text"] for m in (whole, streamed)]
    assert texts[0] == texts[1]
    assert whole.model == "claude-x"
    used = [m.usage.input_tokens + m.usage.cache_read_input_tokens for m in (whole, streamed)]
    count = client.messages.count_tokens(model="claude-x", messages=HI).input_tokens
    assert used == [count, count]
    assert streamed.usage.cache_read_input_tokens == count - 1


def test_the_same_conversation_is_the_same_prompt_in_both_dialects(server, client):
    talk = [
        *HI,
        {"role": "assistant", "content": "the channel"},
        {"role": "user", "content": "and?"},
    ]
    system = {"role": "system", "content": "You are a miller."}
    other = openai.OpenAI(base_url=server.url + "/v1", api_key="key", max_retries=0, timeout=60)
    theirs = other.chat.completions.create(
        model="tiny", messages=[system, *talk], max_tokens=24, seed=3
    )
    ours = ask(client, messages=talk, system=system["content"])
    assert "".join(b.text for b in ours.content if b.type == "text") == (
        theirs.choices[0].message.content or ""
    )
    assert ours.usage.cache_read_input_tokens == theirs.usage.prompt_tokens - 1


def test_a_forced_call_is_valid_and_its_result_goes_back(client):
    forced = {"type": "tool", "name": "get_weather"}
    given = {"tools": [WEATHER], "max_tokens": 300, **AT_ONCE}
    reply = ask(client, tool_choice=forced, **given)
    assert reply.stop_reason == "tool_use"
    call = reply.content[-1]
    assert (call.type, call.name) == ("tool_use", "get_weather")
    assert call.input["city"] in ("Paris", "Rome")
    assert 1 <= call.input["days"] <= 9
    answer = {"role": "assistant", "content": [b.model_dump() for b in reply.content]}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    talk = [*HI, answer, {"role": "user", "content": [result]}]
    again = ask(client, messages=talk, tools=[WEATHER], **AT_ONCE)
    assert again.stop_reason in ("end_turn", "max_tokens", "tool_use")
    assert again.usage.cache_read_input_tokens > 0.6 * reply.usage.input_tokens


def test_a_call_that_comes_back_as_other_json_costs_only_what_is_new(client):
    """As agents send it: keys in another order, no spaces, the same data."""
    forced = {"type": "tool", "name": "get_weather"}
    given = {"tools": [WEATHER], "max_tokens": 300, **AT_ONCE}
    first = ask(client, tool_choice=forced, **given)
    call = first.content[-1]
    used = {"type": "tool_use", "id": call.id, "name": call.name}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    talk = [
        *HI,
        {"role": "assistant", "content": [{**used, "input": dict(reversed(call.input.items()))}]},
        {"role": "user", "content": [result]},
    ]
    usage = ask(client, messages=talk, **given).usage
    before = first.usage.input_tokens + first.usage.cache_read_input_tokens
    # The last token of an answer was never an input.
    assert usage.cache_read_input_tokens >= before + first.usage.output_tokens - 2


def test_a_schema_shapes_the_answer(client):
    schema = {
        "type": "object",
        "properties": {"title": {"enum": ["a", "b"]}},
        "required": ["title"],
        "additionalProperties": False,
    }
    shape = {"format": {"type": "json_schema", "schema": schema}}
    reply = ask(client, max_tokens=200, output_config=shape)
    text = "".join(b.text for b in reply.content if b.type == "text")
    assert json.loads(text)["title"] in ("a", "b")
    assert reply.stop_reason == "end_turn"


def test_an_overlong_prompt_is_refused_and_a_fitting_one_is_clamped(client):
    long = [{"role": "user", "content": "long " * 700}]
    with pytest.raises(
        anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 600 max"
    ):
        ask(client, messages=long)
    reply = ask(
        client, max_tokens=128_000, stream=False, timeout=60, extra_body={"ignore_eos": True}
    )
    assert reply.stop_reason == "max_tokens"


def test_a_client_that_leaves_frees_the_engine(server, client):
    stream = ask(client, max_tokens=500, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    until = time.monotonic() + 20
    headers = {"x-api-key": "key"}
    while True:
        status = httpx.get(server.url + "/engine/status", headers=headers).json()
        if status["engine"]["running"] == status["server"]["turns"] == 0:
            break
        assert time.monotonic() < until, status
        time.sleep(0.02)


def test_a_wrong_key_is_refused_in_the_dialects_shape(server):
    with pytest.raises(anthropic.AuthenticationError) as caught:
        ask(anthropic.Anthropic(base_url=server.url, api_key="no", max_retries=0))
    assert caught.value.body["error"]["type"] == "authentication_error"
    bearer = anthropic.Anthropic(base_url=server.url, auth_token="key", max_retries=0)
    assert ask(bearer).type == "message"
