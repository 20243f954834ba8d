"""Anthropic bodies -> calls: what is honoured, what changes nothing, what is refused by name."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.anthropic import Wishes, parse_count, parse_message
from headrace.api.anthropic_errors import anthropic_error
from headrace.api.fields import Fields
from headrace.chat.length import ContextOverflow
from headrace.chat.types import Message, OutputFormat, Tool, ToolCall, ToolChoice
from headrace.engine.request import Sampling
from headrace.errors import RequestError

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
CALLS = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": " hm", "signature": "ab12"},
        {"type": "text", "text": "I look. "},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1.0, "é": None}},
        {"type": "tool_use", "id": "c2", "name": "f", "input": {}, "caller": {"type": "direct"}},
    ],
}


def parse(**more):
    body = {"model": "m", "max_tokens": 9, "messages": [USER], **more}
    return parse_message(Fields(body), Sampling())


def ask(*messages, **more):
    return parse(messages=list(messages), **more).ask


def result(call_id, content=None, **more):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def test_sampling_and_stops_arrive():
    call = parse(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["a", "b"], stream=True)
    assert call.sampling == Sampling(temperature=0.5, top_p=0.9, top_k=7, max_tokens=9)
    assert call.ask.stop == ("a", "b")
    assert call.stream is not None
    assert parse().stream is None


def test_the_system_prompt_leads_and_its_billing_line_is_gone():
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=81a;"}
    cached = {"type": "text", "text": "You are it.", "cache_control": {"type": "ephemeral"}}
    blocks = [billing, cached, {"type": "text", "text": "More."}]
    expected = Message("system", "You are it.\n\nMore.")
    assert ask(USER, system=blocks).messages == (expected, Message("user", "hi"))
    assert ask(USER, system=billing["text"] + "\nYou are it.").messages[0].content == "You are it."
    assert ask(USER, system=[billing]).messages == (Message("user", "hi"),)
    twice = billing["text"] + "\n" + billing["text"]
    assert ask(USER, system=twice + "\n\nIt.").messages[0].content == "\nIt."


def test_a_system_message_stays_where_it_stands():
    late = {"role": "system", "content": [{"type": "text", "text": "note"}]}
    roles = [m.role for m in ask(USER, late, USER).messages]
    assert roles == ["user", "system", "user"]


def test_an_answer_comes_back_with_its_thinking_handle_and_calls():
    said = ask(USER, CALLS, {"role": "user", "content": [result("c1", "x"), result("c2")]})
    assert said.messages[1] == Message(
        role="assistant",
        content="I look. ",
        reasoning=" hm",
        tool_calls=(
            ToolCall("c1", "f", '{"a": 1.0, "é": null}'),
            ToolCall("c2", "f", "{}"),
        ),
        handle="ab12",
    )
    assert said.messages[2:] == (
        Message("tool", "x", tool_call_id="c1"),
        Message("tool", "", tool_call_id="c2"),
    )


@pytest.mark.parametrize(
    "block",
    [
        {"type": "redacted_thinking", "data": "ab12"},
        {"type": "thinking", "thinking": "", "signature": "ab12"},
    ],
)
def test_thinking_that_came_back_without_its_text_is_sealed(block):
    text = {"type": "text", "text": "yes"}
    said = ask(USER, {"role": "assistant", "content": [block, text]}, USER).messages[1]
    assert said == Message("assistant", "yes", handle="ab12", sealed=True)


def test_a_long_signature_of_another_server_is_no_handle():
    block = {"type": "thinking", "thinking": "hm", "signature": "x" * 4000}
    said = ask(USER, {"role": "assistant", "content": [block]}, USER).messages[1]
    assert said == Message("assistant", "", reasoning="hm")


def test_results_come_before_what_the_user_said_and_keep_their_errors():
    blocks = [
        {"type": "text", "text": "and now?"},
        result("c1", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        result("c2", "no such file", is_error=True),
    ]
    messages = ask(USER, CALLS, {"role": "user", "content": blocks}).messages[2:]
    assert [(m.role, m.content) for m in messages] == [
        ("tool", "a\n\nb"),
        ("tool", "Error: no such file"),
        ("user", "and now?"),
    ]


def test_a_reminder_beside_results_is_no_question():
    note = "<system-reminder>\nthe list is empty\n</system-reminder>\n"
    blocks = [result("c1", "a"), result("c2", "b"), {"type": "text", "text": note}]
    messages = ask(USER, CALLS, {"role": "user", "content": blocks}).messages[2:]
    assert [(m.role, m.content) for m in messages] == [("tool", "a"), ("tool", f"b\n\n{note}")]
    alone = ask({"role": "user", "content": [{"type": "text", "text": note}]}).messages
    assert alone == (Message("user", note),)


def test_two_answers_in_a_row_are_one_turn_and_the_last_is_gone_on_with():
    first = {"role": "assistant", "content": "The best answer"}
    again = ask(USER, first, {"role": "assistant", "content": [{"type": "text", "text": " is ("}]})
    assert again.messages == (Message("user", "hi"), Message("assistant", "The best answer is ("))
    assert again.continue_last
    assert not ask(USER, first, USER).continue_last


def test_string_and_blocks_are_the_same():
    blocks = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": None}]}
    assert ask(blocks) == ask(USER)


def test_tools_arrive_and_tool_choice_maps():
    strict = {**TOOL, "name": "g", "strict": True, "type": "custom", "cache_control": {"type": "x"}}
    call = parse(tools=[TOOL, strict], tool_choice={"type": "any"})
    assert call.ask.tools == (
        Tool("f", "d", {"type": "object"}),
        Tool("g", "d", {"type": "object"}, strict=True),
    )
    assert call.ask.tool_choice == ToolChoice("required")
    for given_as, choice in (
        ({"type": "auto"}, ToolChoice()),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "tool", "name": "f"}, ToolChoice("named", "f")),
    ):
        assert parse(tools=[TOOL], tool_choice=given_as).ask.tool_choice == choice
    single = {"type": "auto", "disable_parallel_tool_use": True}
    assert not parse(tools=[TOOL], tool_choice=single).ask.parallel_tool_calls


def test_examples_of_a_tool_are_described():
    described = parse(tools=[{**TOOL, "input_examples": [{"a": 1}]}]).ask.tools[0].description
    assert described == 'd\n\nExamples of its input:\n{"a": 1}'


def test_a_deferred_tool_is_described_where_a_result_refers_to_it():
    late = {**TOOL, "name": "late", "defer_loading": True}
    other = {**TOOL, "name": "other", "defer_loading": True}
    found = result("c1", [{"type": "tool_reference", "tool_name": "late"}])
    talk = [USER, CALLS, {"role": "user", "content": [found]}]
    loaded = ask(*talk, tools=[TOOL, late, other])
    assert [(t.name, t.deferred) for t in loaded.tools] == [("f", False), ("late", True)]
    line = loaded.messages[2].content.splitlines()[1]
    assert json.loads(line)["function"]["name"] == "late"
    assert [t.name for t in ask(USER, tools=[TOOL, late, other]).tools] == ["f"]
    again = [*talk, {"role": "assistant", "content": "ok"}, {"role": "user", "content": [found]}]
    told = ask(*again, tools=[TOOL, late]).messages[-1].content
    assert "late" in told
    assert "{" not in told
    with pytest.raises(RequestError) as caught:
        ask(*talk, tools=[TOOL])
    assert caught.value.field == "messages[2].content[0].content[0].tool_name"


def test_what_a_vendors_server_would_run_is_left_out():
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    late = {**TOOL, "name": "late", "defer_loading": True}
    web = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    tools = parse(tools=[web, search, late]).ask.tools
    assert [(t.name, t.deferred) for t in tools] == [("late", False)]
    bash = parse(tools=[{"type": "bash_20250124", "name": "bash"}]).ask.tools[0]
    assert bash.name == "bash"
    assert "command" in bash.parameters["properties"]


@pytest.mark.parametrize(
    ("thinking", "wanted", "budget", "hidden"),
    [
        (None, None, None, False),
        ({"type": "disabled"}, False, None, False),
        ({"type": "enabled", "budget_tokens": 7168}, True, 7168, False),
        ({"type": "adaptive", "display": "omitted"}, True, None, True),
        ({"type": "adaptive", "display": "summarized"}, True, None, False),
    ],
)
def test_thinking_maps(thinking, wanted, budget, hidden):
    call = parse(thinking=thinking)
    assert (call.ask.thinking, call.ask.thinking_budget) == (wanted, budget)
    assert call.wishes == Wishes(hide_thinking=hidden)


def test_effort_and_format_map():
    shape = {"type": "json_schema", "schema": {"type": "object"}}
    one = parse(output_config={"effort": "xhigh", "format": shape}).ask
    assert one.effort == "max"
    assert one.format == OutputFormat("json_schema", {"type": "object"})
    assert parse(output_format=shape).ask.format == one.format


def test_what_changes_nothing_is_taken():
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    call = parse(
        metadata={"user_id": "u"}, service_tier="auto", cache_control={"type": "ephemeral"},
        container=None, mcp_servers=[], context_management=edits, diagnostics={},
    )  # fmt: skip
    assert call.ask == parse().ask
    assert call.wishes.edits == ()


def test_documents_of_text_are_read_and_pictures_in_results_leave_a_line():
    document = {
        "type": "document", "title": "T", "context": "C", "citations": {"enabled": False},
        "source": {"type": "text", "media_type": "text/plain", "data": "D"},
    }  # fmt: skip
    found = {
        "type": "search_result", "title": "S", "source": "url",
        "content": [{"type": "text", "text": "body"}],
    }  # fmt: skip
    assert ask({"role": "user", "content": [document, found]}).messages[0].content == (
        "T\n\nC\n\nD\n\nS\n\nurl\n\nbody"
    )
    picture = {"type": "image", "source": {"type": "base64", "data": "", "media_type": "image/png"}}
    talk = [USER, CALLS, {"role": "user", "content": [result("c1", [picture])]}]
    assert "image" in ask(*talk).messages[2].content


def test_what_another_server_ran_stays_readable():
    used = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
    item = {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "E" * 99}
    gave = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [item]}
    text = ask(USER, {"role": "assistant", "content": [used, gave]}, USER).messages[1].content
    assert '"query": "q"' in text
    assert '"url": "u"' in text
    assert "EEE" not in text


def test_counting_takes_what_does_not_reach_the_prompt():
    body = {"model": "m", "messages": [USER], "tools": [TOOL], "max_tokens": "odd"}
    assert parse_count(Fields(body)) == parse(tools=[TOOL]).ask


IMAGE = {"type": "image", "source": {"type": "url", "url": "u"}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [USER] * 100_001}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [PDF]}]}, "messages[0].content[0].source.type"),
        ({"messages": [{"role": "user", "content": [{"type": "odd"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [result("c9", "x")]}]},
         "messages[0].content[0].tool_use_id"),
        ({"messages": [USER, CALLS]}, "messages"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": 3}, "system"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"thinking": {"type": "loud"}}, "thinking.type"),
        ({"thinking": {}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"context_management": {"edits": [{"type": "odd"}]}}, "context_management.edits[0].type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"temprature": 1}, "temprature"),
    ],
)  # fmt: skip
def test_a_fault_names_its_field(more, field):
    with pytest.raises(RequestError) as caught:
        parse(**more)
    assert caught.value.field == field
    body = anthropic_error(caught.value)
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith(field)


def test_an_overlong_prompt_is_told_in_the_words_that_make_agents_compact():
    error = anthropic_error(ContextOverflow(250_000, 200_000, "messages"))["error"]
    assert error == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 250000 tokens > 200000 maximum",
    }


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "name", "id", "input", "role", "source"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
KIND = st.sampled_from(
    ["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "x"]
)
BLOCK = st.builds(lambda kind, rest: {**rest, "type": kind}, KIND, st.dictionaries(
    st.sampled_from(["text", "id", "name", "input", "tool_use_id", "content", "thinking", "data"]),
    JUNK, max_size=4,
))  # fmt: skip
ENTRY = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
    optional={"content": JUNK | st.lists(BLOCK, max_size=4)},
)
NAMES = (
    *("system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences"),
    *("stream", "temperature", "context_management", "metadata", "odd"),
)
BODY = st.fixed_dictionaries(
    {"messages": JUNK | st.lists(ENTRY, max_size=4), "max_tokens": st.just(5) | JUNK},
    optional=dict.fromkeys(NAMES, JUNK),
)


@given(BODY)
def test_any_body_is_a_call_or_a_request_error(body):
    with contextlib.suppress(RequestError):
        assert parse_message(Fields(body), Sampling()).ask.messages
