"""Forced and strict calls: what the grammar lets through is what our own reader reads."""

import json
import random

import pytest
from chat_masks import FIRST, RENDERERS, SCHEMA, SECOND, USER, accepts, is_valid, walk

from headrace.chat.grammar import compile_constraint
from headrace.chat.reader import TurnReader, joined
from headrace.chat.types import (
    ChatRequest,
    OutputFormat,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolCallStart,
    ToolChoice,
)


def read(renderer, tokens, tools):
    reader = TurnReader(renderer.tokenizer, renderer.style, tools)
    events = [event for token in tokens for event in reader.feed(token)]
    return joined(events + reader.finish())


def calls(events):
    """(name, arguments); each call's arguments are one delta after `joined`."""
    names = [e.name for e in events if isinstance(e, ToolCallStart)]
    arguments = [json.loads(e.arguments) for e in events if isinstance(e, ToolCallDelta)]
    return list(zip(names, arguments, strict=True))


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("seed", range(6))
def test_random_forced_calls_are_calls(request, name, seed):
    renderer = request.getfixturevalue(name)
    rng = random.Random(seed)
    tools = (FIRST, SECOND)
    required = {"first": ["n", "kind"], "second": ["n"]}
    for choice, parallel, names in (
        (ToolChoice("required"), True, {"first", "second"}),
        (ToolChoice("required"), False, {"first", "second"}),
        (ToolChoice("named", "second"), True, {"second"}),
        (ToolChoice("required", allowed=("first",)), True, {"first"}),
    ):
        wanted = ChatRequest(USER, tools, tool_choice=choice, parallel_tool_calls=parallel)
        constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
        events = read(renderer, walk(constraint, renderer.tokenizer, rng), tools)
        found = calls(events)
        assert not any(isinstance(e, TextDelta | ReasoningDelta) for e in events)
        assert len(found) == 1 or (len(found) > 1 and choice.mode == "required" and parallel)
        assert {n for n, _ in found} <= names
        assert all(is_valid(arguments, required[n]) for n, arguments in found)


HERMES_CALL = '<tool_call>\n{"name": "first", "arguments": {"n": 3, "kind": "wet"}}\n</tool_call>'
XML_CALL = (
    "<tool_call>\n<function=first>\n<parameter=n>\n3\n</parameter>\n<parameter=kind>\nwet\n"
    "</parameter>\n</function>\n</tool_call>"
)


@pytest.mark.parametrize("name", RENDERERS)
def test_text_and_strict_calls(request, name):
    renderer = request.getfixturevalue(name)
    call = HERMES_CALL if name.startswith("hermes") else XML_CALL
    strict = Tool("first", "", SCHEMA, strict=True)

    def outcome(text, *, parallel=True):
        wanted = ChatRequest(USER, (strict,), parallel_tool_calls=parallel)
        constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
        return accepts(constraint, renderer.tokenizer, text)

    assert outcome("Just an answer, < and {.\n\nYes.") is True
    assert outcome(call) is True
    assert outcome(f"First I look.\n\n{call}") is True
    assert outcome(f"{call}\n{call}") is True
    assert outcome(f"{call}\n{call}", parallel=False) == call
    assert outcome(f"First.\n{call}", parallel=False) is True
    assert outcome(call[: -len("</tool_call>")]) is False
    wrong = call.replace("wet", "hot")
    assert outcome(f"So\n{wrong}").endswith(wrong[: wrong.index("hot")])
    assert outcome(call.replace("first", "third")) not in (True, False)


@pytest.mark.parametrize("name", ["xml", "xml_as_text"])
def test_xml_strings_are_free(request, name):
    renderer = request.getfixturevalue(name)
    schema = {
        "properties": {
            "code": {"type": "string"},
            "deep": {"$ref": "#/$defs/pair"},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["code"],
        "$defs": {"pair": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
    }
    tool = Tool("run", "", schema)
    wanted = ChatRequest(USER, (tool,), tool_choice=ToolChoice("required"))
    code = 'if a < b:\n    print("é {x} </p>")\n\n'
    text = (
        f"<tool_call>\n<function=run>\n<parameter=code>\n{code}\n</parameter>\n<parameter=deep>\n"
        "[1, 2]\n</parameter>\n<parameter=maybe>\nnull\n</parameter>\n</function>\n</tool_call>"
    )
    constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
    assert accepts(constraint, renderer.tokenizer, text) is True
    events = read(renderer, renderer.tokenizer.encode(text, special=False), (tool,))
    assert calls(events) == [("run", {"code": code, "deep": [1, 2], "maybe": None})]
    missing = text.replace(f"<parameter=code>\n{code}\n</parameter>\n", "")
    constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
    assert accepts(constraint, renderer.tokenizer, missing).endswith("<function=run>\n<parameter=")


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize(
    "parameters", [{}, {"type": "object"}, {"type": "object", "properties": {}}]
)
def test_tools_without_a_schema_can_be_forced(request, name, parameters):
    renderer = request.getfixturevalue(name)
    tool = Tool('odd "name"' if name.startswith("hermes") else "odd-name", "", parameters)
    wanted = ChatRequest(USER, (tool,), tool_choice=ToolChoice("required"))
    if name.startswith("hermes"):
        body = f'{{"name": {json.dumps(tool.name)}, "arguments": {{"x": [1]}}}}'
        text = f"<tool_call>\n{body}\n</tool_call>"
        got = {"x": [1]}
    else:
        text = (
            "<tool_call>\n<function=odd-name>\n<parameter=x>\n[1]\n</parameter>\n</function>\n"
            "</tool_call>"
        )
        got = {"x": "[1]"}
    constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
    assert accepts(constraint, renderer.tokenizer, text) is True
    events = read(renderer, renderer.tokenizer.encode(text, special=False), (tool,))
    assert calls(events) == [(tool.name, got)]


def test_a_format_beside_tools_means_either(hermes):
    wanted = ChatRequest(USER, (FIRST,), format=OutputFormat("json_schema", schema=SCHEMA))
    for text, fine in (
        ('{"n": 1, "kind": "dry"}', True),
        (HERMES_CALL, True),
        ("Hello", ""),
    ):
        constraint = compile_constraint(hermes.tokenizer, wanted, hermes.style)
        assert accepts(constraint, hermes.tokenizer, text) == fine


@pytest.mark.parametrize("name", ["hermes", "hermes_as_text"])
def test_only_allowed_tools_may_be_called(request, name):
    renderer = request.getfixturevalue(name)

    def let_through(text, allowed):
        choice = ToolChoice("auto", allowed=allowed)
        wanted = ChatRequest(USER, (FIRST, SECOND), tool_choice=choice)
        constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
        return accepts(constraint, renderer.tokenizer, text, special=True)

    assert let_through(HERMES_CALL, ("first",)) is True
    assert let_through(HERMES_CALL, ("first", "second")) is True
    if name == "hermes":  # where the mark is mere text, a call that is not allowed is text, too
        assert let_through(HERMES_CALL, ("second",)) is not True
    assert let_through("Plain text.", ("second",)) is True
