"""Bodies of the Responses API -> calls: tools become functions, and a fault has a name."""

from __future__ import annotations

import json

import pytest
import responses_bodies
from hypothesis import HealthCheck, given, settings
from responses_calls import LOOK, PATCH, TEAM, USER, A, call, output, parse, text

from headrace.api.call import StreamOptions
from headrace.api.errors import CODES
from headrace.api.fields import Fields, parse_json
from headrace.api.responses import parse_response
from headrace.api.responses_store import ResponseStore
from headrace.chat.types import Message, TextInput, ToolChoice
from headrace.engine.request import Sampling
from headrace.errors import RequestError


def test_namespaces_are_flattened_both_ways():
    items = [
        USER,
        call("c1", "ask", namespace="team"),
        {
            "type": "custom_tool_call",
            "call_id": "c2",
            "name": "tell",
            "namespace": "team",
            "input": "x",
        },
        output("c1"),
    ]
    ask = parse(items, tools=[LOOK, TEAM]).ask
    assert [tool.name for tool in ask.tools] == ["look", "team__ask", "team__tell"]
    assert [c.name for c in ask.messages[1].tool_calls] == ["team__ask", "team__tell"]


def test_what_only_a_hosted_service_runs_is_not_offered_and_the_reply_says_so():
    made = parse(tools=[{"type": "web_search"}, LOOK, {"type": "mcp", "server_label": "x"}])
    assert [tool.name for tool in made.ask.tools] == ["look"]
    assert [tool["name"] for tool in made.wish.echo["tools"]] == ["look"]


LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
REGEX = {"type": "grammar", "syntax": "regex", "definition": "a+"}


@pytest.mark.parametrize(
    ("form", "words", "text"),
    [
        (None, "free text", TextInput()),
        ({"type": "text"}, "free text", TextInput()),
        (LARK, 'start: "x"', TextInput("lark", 'start: "x"', "tools[0].format.definition")),
        (REGEX, "a+", TextInput("regex", "a+", "tools[0].format.definition")),
    ],
)
def test_custom_tools_are_functions_with_one_string(form, words, text):
    made = parse(tools=[{**PATCH, **({"format": form} if form else {})}])
    tool = made.ask.tools[0]
    assert tool.description.startswith("Changes a file.")
    assert words in tool.description
    assert tool.parameters["required"] == ["input"]
    assert tool.input == text
    assert made.wish.echo["tools"][0]["format"] == form or {"type": "text"}


def test_tools_of_an_item_are_offered_too():
    item = {"type": "additional_tools", "role": "developer", "tools": [LOOK]}
    assert [tool.name for tool in parse([USER, item]).ask.tools] == ["look"]


@pytest.mark.parametrize(
    ("choice", "neutral"),
    [
        (None, ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "look"}, ToolChoice("named", "look")),
        ({"type": "custom", "name": "patch"}, ToolChoice("named", "patch")),
        ({"type": "function", "name": "ask"}, ToolChoice("named", "team__ask")),
        (
            {"type": "function", "name": "ask", "namespace": "team"},
            ToolChoice("named", "team__ask"),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "look"}],
            },
            ToolChoice("required", allowed=("look",)),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "custom", "name": "patch"}, {"type": "custom", "name": "tell"}],
            },
            ToolChoice("auto", allowed=("patch", "team__tell")),
        ),
    ],
)
def test_every_form_of_tool_choice(choice, neutral):
    made = parse(tools=[LOOK, PATCH, TEAM], tool_choice=choice)
    assert made.ask.tool_choice == neutral
    assert made.wish.echo["tool_choice"] == (choice or "auto")


def test_formats_of_the_text():
    schema = {"type": "object", "properties": {}}
    made = parse(text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
    assert (made.ask.format.kind, made.ask.format.schema) == ("json_schema", schema)
    assert made.wish.echo["text"]["format"]["strict"] is True
    assert parse(text={"format": {"type": "json_object"}}).ask.format.kind == "json_object"
    made = parse(text={"format": {"type": "regex", "pattern": "a+"}})
    assert (made.ask.format.kind, made.ask.format.pattern) == ("regex", "a+")
    assert parse(text={}).ask.format.kind == "text"


def test_verbosity_is_said_to_the_model():
    brief = parse(text={"verbosity": "low"}, instructions="Be kind.").ask.messages[0]
    assert brief == Message("system", "Be kind.\n\nAnswer as briefly as you can.")
    assert parse(text={"verbosity": "medium"}).ask.messages == (Message("user", "hi"),)


@pytest.mark.parametrize(
    ("effort", "thinking", "neutral"),
    [("none", False, "none"), ("low", True, "low"), ("xhigh", True, "max"), (None, None, None)],
)
def test_effort_reaches_the_request(effort, thinking, neutral):
    ask = parse(reasoning={"effort": effort, "summary": "auto"}).ask
    assert (ask.thinking, ask.effort) == (thinking, neutral)


def test_sampling_and_what_the_reply_repeats():
    made = parse(
        max_output_tokens=20,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=3,
        metadata={"a": "b"},
        prompt_cache_key="k",
        safety_identifier="s",
        service_tier="auto",
        store=False,
        include=["reasoning.encrypted_content"],
        parallel_tool_calls=False,
        stream=True,
        stream_options={"include_obfuscation": False},
        truncation="disabled",
        background=False,
    )
    assert (made.sampling.max_tokens, made.sampling.temperature) == (20, 0.5)
    assert (made.sampling.top_p, made.sampling.logprobs) == (0.9, 3)
    assert made.ask.parallel_tool_calls is False
    assert made.stream == StreamOptions()
    assert made.wish.encrypted
    assert made.wish.logprobs
    assert not made.wish.store
    echo = made.wish.echo
    assert (echo["metadata"], echo["prompt_cache_key"], echo["store"]) == ({"a": "b"}, "k", False)
    assert (echo["temperature"], echo["top_logprobs"], echo["max_output_tokens"]) == (0.5, 3, 20)


WRONG = [
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"truncation": "some"}, "truncation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {}}, "moderation"),
    ({"unheard_of": 1}, "unheard_of"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"temperature": 3}, "temperature"),
    ({"include": ["everything"]}, "include"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"stream_options": {}}, "stream_options"),
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{}]}, "input[0].type"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [USER, {"type": "brain_wave"}]}, "input[1].type"),
    ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type"),
    ({"input": [output("c1")]}, "input[0].call_id"),
    ({"input": [USER, call("c1"), output("c2")]}, "input[2].call_id"),
    ({"input": [USER, call("c1", arguments=5)]}, "input[1].arguments"),
    ({"input": [{"type": "item_reference", "id": "rs_gone"}]}, "input[0].id"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
    ({"previous_response_id": "resp_gone"}, "previous_response_id"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [LOOK, LOOK]}, "tools[1].name"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{**LOOK, "speed": 1}]}, "tools[0].speed"),
    ({"tools": [{**PATCH, "format": {"type": "grammar"}}]}, "tools[0].format.syntax"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [LOOK], "tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
    ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
    ({"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
]


@pytest.mark.parametrize(
    ("body", "field"), WRONG, ids=[f"{i}-{f}" for i, (_, f) in enumerate(WRONG)]
)
def test_a_fault_names_its_field(body, field):
    with pytest.raises(RequestError) as caught:
        parse(**body)
    assert caught.value.field == field
    assert caught.value.http_status in (400, 404)


def finished(kept, id, items, output, previous=None):
    kept.put({"id": id, "output": output}, items, previous)


def test_a_response_goes_on_from_the_one_before():
    kept = ResponseStore()
    first = parse("What is it?", kept, instructions="Old rules")
    said = {
        "type": "message",
        "role": "assistant",
        "id": f"msg_{A}00",
        "content": [text("output_text", "A cat")],
    }
    finished(kept, "resp_1", first.wish.items, [said])
    second = parse("Sure?", kept, previous_response_id="resp_1", instructions="New rules")
    assert second.ask.messages == (
        Message("system", "New rules"),
        Message("user", "What is it?"),
        Message("assistant", "A cat", handle=A),
        Message("user", "Sure?"),
    )
    finished(kept, "resp_2", second.wish.items, [], second.wish.previous)
    kept.delete("resp_1")  # its items live on in what follows it
    third = parse([], kept, previous_response_id="resp_2")
    assert [m.content for m in third.ask.messages] == ["What is it?", "A cat", "Sure?"]


def test_items_can_be_referred_to():
    kept = ResponseStore()
    first = parse([USER], kept)
    said = {"type": "message", "role": "assistant", "id": f"msg_{A}00", "content": "A cat"}
    finished(kept, "resp_1", first.wish.items, [said])
    ids = [first.wish.items[0]["id"], f"msg_{A}00"]
    made = parse([{"type": "item_reference", "id": ids[0]}, {"id": ids[1]}], kept)
    assert [m.content for m in made.ask.messages] == ["hi", "A cat"]
    assert [item["type"] for item in made.wish.items] == ["message", "message"]
    finished(kept, "resp_2", made.wish.items, [], None)
    assert parse([{"id": ids[1]}], kept).ask.messages[0].content == "A cat"


@pytest.mark.parametrize("id", [None, "", [None], {"a": 1}, 7])
def test_an_item_without_an_id_of_text_gets_one(id):
    kept = ResponseStore()
    made = parse([{"role": "user", "content": "hi", "id": id}], kept)
    kept.put({"id": "resp_1", "output": []}, made.wish.items, None)
    assert kept.item(made.wish.items[0]["id"])["content"][0]["text"] == "hi"
    assert kept.delete("resp_1")


def test_a_previous_response_that_is_gone_has_the_services_own_code():
    with pytest.raises(RequestError) as caught:
        parse(previous_response_id="resp_gone")
    assert CODES[type(caught.value)] == "previous_response_not_found"
    assert caught.value.http_status == 400


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(responses_bodies.BODIES)
def test_any_body_is_read_or_refused_by_the_name_of_a_field(body):
    try:
        fields = Fields(parse_json(json.dumps(body).encode()))
        made = parse_response(fields, Sampling(), ResponseStore())
    except RequestError:
        return
    json.dumps([made.wish.echo, made.wish.items])
    assert made.ask.messages
    kept = ResponseStore()
    kept.put({"id": "resp_1", "output": []}, made.wish.items, None)
    # What was stored is read again with the response that follows it.
    body = Fields({"input": "x", "previous_response_id": "resp_1"})
    again = parse_response(body, Sampling(), kept).ask.messages
    assert [m.content for m in again[:-1]] == [m.content for m in made.ask.messages][
        -len(again) + 1 :
    ]


def test_a_choice_of_the_wrong_kind_of_tool_says_which_there_are():
    chosen = {"type": "function", "name": PATCH["name"]}
    with pytest.raises(RequestError, match="among the function tools; expected one of look"):
        parse(tools=[LOOK, PATCH], tool_choice=chosen)
