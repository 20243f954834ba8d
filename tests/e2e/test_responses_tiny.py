"""The official client's Responses API against `headrace serve` with a tiny random model."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import lark
import openai
import pydantic
import pytest

sys.path.append(str(Path(__file__).parent))
from served import Served, official, serving, tiny_model

HI = "What does the miller read?"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": PARAMETERS,
    "strict": True,
}
CLOCK = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
LETTERS = {
    "type": "custom",
    "name": "letters",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[abc]{3,9}"},
}
TEAM = {"type": "namespace", "name": "team", "description": "Others", "tools": [WEATHER]}
# A random model that may think first would not come to its call.
AT_ONCE = {"effort": "none"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    with serving(folder, "--context", "1500", "--served-name", "tiny") as served:
        yield served


@pytest.fixture(scope="module")
def client(server: Served) -> openai.OpenAI:
    return official(server)


def given(**more):
    seed = {"seed": 3}
    return {"model": "tiny", "input": HI, "max_output_tokens": 24, "extra_body": seed, **more}


def ask(client: openai.OpenAI, **more):
    return client.responses.create(**given(**more))


def test_a_streamed_answer_is_the_whole_one_and_its_prompt_was_cached(client):
    whole = ask(client)
    with client.responses.stream(**given()) as stream:
        events = list(stream)
        final = stream.get_final_response
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    last = events[-1].response
    assert last.output_text == whole.output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        last.output_text
    )
    assert last.status == whole.status
    if last.status == "completed":
        assert final().output_text == last.output_text
    assert last.usage.input_tokens == whole.usage.input_tokens > 10
    assert last.usage.input_tokens_details.cached_tokens == whole.usage.input_tokens - 1
    assert 1 <= last.usage.output_tokens <= 24


def test_an_answer_cut_at_its_limit_is_incomplete(client):
    reply = ask(client, max_output_tokens=4, extra_body={"seed": 3, "ignore_eos": True})
    assert reply.status == "incomplete"
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.usage.output_tokens == 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_and_its_result_make_a_round_trip(client, stream):
    wanted = given(
        tools=[CLOCK, WEATHER],
        tool_choice={"type": "function", "name": "get_weather"},
        reasoning=AT_ONCE,
        max_output_tokens=300,
    )
    if stream:
        with client.responses.stream(**wanted) as events:
            deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
            reply = events.get_final_response()
        assert "".join(deltas) == reply.output[-1].arguments
    else:
        reply = client.responses.create(**wanted)
    call = reply.output[-1]
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    arguments = json.loads(call.arguments)
    assert arguments["city"] in ("Paris", "Rome")
    assert 1 <= arguments["days"] <= 9
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    items = [{"role": "user", "content": HI}, *reply.output, result]
    after = ask(client, input=items, tools=[CLOCK, WEATHER], reasoning=AT_ONCE)
    assert after.usage.input_tokens > reply.usage.input_tokens
    same = ask(
        client,
        input=[result],
        previous_response_id=reply.id,
        tools=[CLOCK, WEATHER],
        reasoning=AT_ONCE,
    )
    assert same.output_text == after.output_text
    assert same.usage.input_tokens == after.usage.input_tokens


def test_calls_that_are_not_allowed_do_not_come(client):
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_time"}],
    }
    for seed in range(4):
        reply = ask(
            client,
            tools=[WEATHER, CLOCK],
            tool_choice=choice,
            reasoning=AT_ONCE,
            max_output_tokens=300,
            parallel_tool_calls=False,
            extra_body={"seed": seed},
        )
        assert [item.name for item in reply.output] == ["get_time"]


def test_a_custom_call_is_text_of_its_lark_grammar(client):
    grammar = 'start: "say " WORD "\\n"\nWORD: /[a-z]{2,5}/'
    form = {"type": "grammar", "syntax": "lark", "definition": grammar}
    reply = client.responses.create(
        **given(
            tools=[{"type": "custom", "name": "speak", "format": form}],
            tool_choice="required",
            parallel_tool_calls=False,
            reasoning=AT_ONCE,
            max_output_tokens=300,
        )
    )
    (call,) = reply.output
    assert (call.type, call.name) == ("custom_tool_call", "speak")
    assert re.fullmatch("say [a-z]{2,5}\n", call.input)
    assert lark.Lark(grammar).parse(call.input)
    form["definition"] = "start: ("
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(
            **given(tools=[{"type": "custom", "name": "speak", "format": form}])
        )
    assert refused.value.param == "tools[0].format.definition"


def test_a_custom_call_matches_its_grammar_streamed_or_not(client):
    wanted = given(
        tools=[LETTERS],
        tool_choice={"type": "custom", "name": "letters"},
        reasoning=AT_ONCE,
        max_output_tokens=300,
    )
    call = client.responses.create(**wanted).output[-1]
    assert call.type == "custom_tool_call"
    assert 3 <= len(call.input) <= 9
    assert set(call.input) <= set("abc")
    with client.responses.stream(**wanted) as events:
        deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call.input


def test_a_call_into_a_namespace_is_named_as_the_client_named_it(client):
    wanted = given(tools=[TEAM], tool_choice="required", reasoning=AT_ONCE, max_output_tokens=300)
    call = client.responses.create(**wanted, parallel_tool_calls=False).output[-1]
    assert (call.namespace, call.name) == ("team", "get_weather")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    reply = ask(client, input=[{"role": "user", "content": HI}, call, result], tools=[TEAM])
    assert reply.status in ("completed", "incomplete")


class Forecast(pydantic.BaseModel):
    city: Literal["Paris", "Rome"]
    wet: bool


def test_a_parsed_answer_fits_its_model(client):
    reply = client.responses.parse(
        **given(reasoning=AT_ONCE, max_output_tokens=300), text_format=Forecast
    )
    assert isinstance(reply.output_parsed, Forecast)
    assert reply.text.format.type == "json_schema"


def test_a_conversation_goes_on_from_what_is_kept(client):
    first = ask(client, instructions="Be brief.")
    second = ask(client, input="Why?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(second.id).output_text == second.output_text
    items = client.responses.input_items.list(second.id, order="asc").data
    assert items[0].content[0].text == HI
    assert items[-1].content[0].text == "Why?"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"


def test_a_turn_sent_back_is_not_computed_again(client):
    first = ask(client, include=["reasoning.encrypted_content"], store=False, max_output_tokens=40)
    items = [{"role": "user", "content": HI}, *first.output, {"role": "user", "content": "Why?"}]
    second = ask(client, input=items)
    # All but the mark that ended the turn: after `max_output_tokens` it was never generated.
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 2


def test_log_probabilities_come_when_included(client):
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "reasoning": AT_ONCE}
    part = ask(client, **wanted).output[-1].content[0]
    assert part.logprobs
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    spelled = b"".join(bytes(entry.bytes) for entry in part.logprobs)
    assert spelled.decode("utf-8", "replace") == part.text


def test_tokens_are_counted_as_they_are_used(client):
    used = ask(client, tools=[WEATHER], instructions="Be brief.").usage.input_tokens
    counted = client.responses.input_tokens.count(
        model="tiny", input=HI, tools=[WEATHER], instructions="Be brief."
    )
    assert counted.input_tokens == used


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True}, "background"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0].type"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "what"}}}},
         "text.format"),
        ({"tools": [{**WEATHER, "parameters": {"type": 5}}]}, "tools"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
         "input[0].call_id"),
    ],
)  # fmt: skip
def test_errors_name_the_field_of_the_request(client, body, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **body)
    assert caught.value.param.startswith(param)
    assert caught.value.type == "invalid_request_error"


def test_a_prompt_that_is_too_long_is_said_in_both_ways(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, input=HI * 200)
    assert caught.value.code == "context_length_exceeded"
    events = list(ask(client, input=HI * 200, stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "context_length_exceeded"


def test_an_answer_needs_one_of_the_served_names(client):
    with pytest.raises(openai.NotFoundError):
        ask(client, model="other")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, model="")
    assert caught.value.param == "model"
