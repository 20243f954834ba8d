"""`context_management`: what becomes of old results and thinking, and what the reply says of it."""

from __future__ import annotations

import httpx
import pytest

from headrace.api.anthropic import parse_count, parse_message
from headrace.api.anthropic_edits import CLEARED
from headrace.api.fields import Fields
from headrace.engine.request import Sampling
from headrace.errors import RequestError

USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
SAID = "x" * 400  # a hundred tokens of a result


def turn(i, name="look"):
    thought = {"type": "thinking", "thinking": f"thought {i}", "signature": "ab12"}
    call = {"type": "tool_use", "id": f"c{i}", "name": name, "input": {"at": i}}
    result = {"type": "tool_result", "tool_use_id": f"c{i}", "content": SAID}
    return [
        {"role": "assistant", "content": [thought, call]},
        {"role": "user", "content": [result]},
    ]


def body(*edits, turns=5, names=("look",) * 9):
    talk = [m for i in range(turns) for m in turn(i, names[i])]
    return {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}, *talk],
        "context_management": {"edits": list(edits)},
    }


def parsed(*edits, **more):
    call = parse_message(Fields(body(*edits, **more)), Sampling())
    return call.ask.messages, call.wishes.edits


def results(messages):
    return "".join("-" if m.content == CLEARED else "x" for m in messages if m.role == "tool")


def thoughts(messages):
    return [m.reasoning for m in messages if m.role == "assistant"]


@pytest.mark.parametrize(
    ("edit", "left"),
    [
        ({}, "xxxxx"),  # far from 100,000 tokens
        ({"trigger": {"type": "tool_uses", "value": 5}}, "xxxxx"),
        ({"trigger": {"type": "tool_uses", "value": 4}}, "--xxx"),
        ({"trigger": {"type": "input_tokens", "value": 600}}, "xxxxx"),
        ({"trigger": {"type": "input_tokens", "value": 400}}, "--xxx"),
        ({"trigger": {"type": "tool_uses", "value": 1},
          "keep": {"type": "tool_uses", "value": 1}}, "----x"),
        ({"trigger": {"type": "tool_uses", "value": 1},
          "keep": {"type": "tool_uses", "value": 0}}, "-----"),
        ({"trigger": {"type": "tool_uses", "value": 1},
          "clear_at_least": {"type": "input_tokens", "value": 150}}, "--xxx"),
        ({"trigger": {"type": "tool_uses", "value": 1},
          "clear_at_least": {"type": "input_tokens", "value": 250}}, "xxxxx"),
        ({"trigger": {"type": "tool_uses", "value": 1}, "exclude_tools": ["look"]}, "xxxxx"),
    ],
)  # fmt: skip
def test_old_results_are_cleared_when_the_trigger_is_passed(edit, left):
    messages, applied = parsed({"type": USES, **edit})
    assert results(messages) == left
    cleared = left.count("-")
    assert [e["cleared_tool_uses"] for e in applied] == ([cleared] if cleared else [])
    for said in applied:
        assert said["type"] == USES
        assert 90 * cleared <= said["cleared_input_tokens"] <= 100 * cleared
    assert all(call.arguments != "{}" for m in messages for call in m.tool_calls)


def test_excluded_tools_keep_their_results_and_inputs_go_where_asked():
    edit = {"type": USES, "trigger": {"type": "tool_uses", "value": 0}, "clear_tool_inputs": True}
    names = ("look", "keep", "look", "look", "look")
    messages, _ = parsed({**edit, "exclude_tools": ["keep"]}, names=names)
    assert results(messages) == "-xxxx"
    arguments = [call.arguments for m in messages for call in m.tool_calls]
    assert arguments == ["{}", *(f'{{"at": {i}}}' for i in range(1, 5))]


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (None, 1),
        ("all", 5),
        ({"type": "all"}, 5),
        ({"type": "thinking_turns", "value": 2}, 2),
        ({"type": "thinking_turns", "value": 9}, 5),
    ],
)
def test_thinking_of_old_turns_is_cleared(keep, kept):
    messages, applied = parsed({"type": THINKING, "keep": keep})
    assert thoughts(messages) == [None] * (5 - kept) + [f"thought {i}" for i in range(5 - kept, 5)]
    assert not any(m.sealed for m in messages)
    assert [e["cleared_thinking_turns"] for e in applied] == ([5 - kept] if kept < 5 else [])


def test_both_edits_are_applied_in_their_order_also_where_tokens_are_counted():
    edits = {"type": THINKING}, {"type": USES, "trigger": {"type": "tool_uses", "value": 1}}
    messages, applied = parsed(*edits)
    assert [edit["type"] for edit in applied] == [THINKING, USES]
    assert parse_count(Fields(body(*edits))).messages == messages


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ({"type": "compact_20260112"}, "type"),
        ({"type": THINKING, "keep": {"type": "thinking_turns", "value": 0}}, "keep.value"),
        ({"type": THINKING, "keep": "some"}, "keep"),
        ({"type": THINKING, "trigger": {}}, "trigger"),
        ({"type": USES, "keep": {"value": -1}}, "keep.value"),
        ({"type": USES, "trigger": {"type": "hours", "value": 1}}, "trigger.type"),
        ({"type": USES, "clear_at_least": {}}, "clear_at_least.value"),
        ({"type": USES, "exclude_tools": [1]}, "exclude_tools"),
    ],
)
def test_a_fault_of_an_edit_is_named(edit, field):
    with pytest.raises(RequestError) as caught:
        parsed(edit)
    assert caught.value.field == f"context_management.edits[0].{field}"


@pytest.mark.parametrize("stream", [False, True])
def test_the_reply_says_which_edits_were_made(start, stream):
    running = start()
    made = {"type": THINKING, "cleared_thinking_turns": 4, "cleared_input_tokens": 9}
    sent = {**body({"type": THINKING}), "stream": stream}
    reply = httpx.post(f"{running.url}/v1/messages", json=sent, timeout=20)
    assert reply.status_code == 200, reply.text
    if stream:
        assert '"cleared_thinking_turns":4' in reply.text
    else:
        assert reply.json()["context_management"] == {"applied_edits": [made]}
