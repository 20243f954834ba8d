"""Neutral events -> events of the Responses API: their exact order, numbers and objects."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import byte_tokenizer

from headrace.api.custom_tools import InputText
from headrace.api.dialect import Envelope
from headrace.api.fields import Fields
from headrace.api.reading import Delta, Ended, Usage
from headrace.api.responses import parse_response
from headrace.api.responses_store import ResponseStore
from headrace.api.responses_wire import ResponseEncoder
from headrace.chat.length import ContextOverflow
from headrace.chat.types import (
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from headrace.engine.request import Logprob, Sampling
from headrace.errors import DeviceError

TOKENIZER = byte_tokenizer()
HANDLE = "0123456789abcdef" * 2
USAGE = Usage(prompt=7, completion=5, reasoning=2, cached=3)
TOOLS = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {
        "type": "namespace",
        "name": "team",
        "description": "",
        "tools": [{"type": "function", "name": "ask", "parameters": {}}],
    },
]


def encoder(kept=None, **body):
    body = {"model": "m", "input": "hi", "tools": TOOLS, **body}
    kept = ResponseStore() if kept is None else kept
    call = parse_response(Fields(body), Sampling(), kept)
    return ResponseEncoder(Envelope("m", TOKENIZER, call, 1, (HANDLE,), created=100), kept)


def read(frames):
    """(name, data) of server-sent events."""
    events = []
    for frame in frames:
        name, data, blank, end = frame.decode().split("\n")
        assert (blank, end) == ("", "")
        data = json.loads(data.removeprefix("data: "))
        assert name == f"event: {data['type']}"
        events.append(data)
    return events


def stream(deltas, reason="stop", **body):
    writer = encoder(**body)
    frames = [*writer.first(USAGE)]
    for delta in deltas:
        frames += writer.next(Delta(0, delta), USAGE)
    frames += [*writer.next(Ended(0, reason), USAGE), *writer.last(USAGE)]
    events = read(frames)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    return events


def brief(event):
    """An event without what every event has."""
    return {k: v for k, v in event.items() if k not in ("sequence_number", "response")}


RS, MSG, FC = f"rs_{HANDLE}00", f"msg_{HANDLE}01", f"fc_{HANDLE}02"
THOUGHT_PART = {"type": "reasoning_text", "text": "Hm, so"}
TEXT_PART = {"type": "output_text", "annotations": [], "logprobs": [], "text": "Yes."}
THOUGHT = {
    "id": RS,
    "type": "reasoning",
    "summary": [],
    "content": [THOUGHT_PART],
    "status": "completed",
    "encrypted_content": f"hr{HANDLE}",
}
SAID = {
    "id": MSG,
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [TEXT_PART],
}
CALL = {
    "id": FC,
    "type": "function_call",
    "status": "completed",
    "arguments": '{"a":1}',
    "call_id": "call1",
    "name": "look",
}
PROGRESS = {"status": "in_progress"}


def at(kind, id, index, **more):
    return {"type": f"response.{kind}", "item_id": id, "output_index": index, **more}


def of_item(kind, index, item):
    return {"type": f"response.output_item.{kind}", "output_index": index, "item": item}


THINK_SPEAK_CALL = [
    {"type": "response.created"},
    {"type": "response.in_progress"},
    of_item("added", 0, {**THOUGHT, "content": [], **PROGRESS}),
    at("content_part.added", RS, 0, content_index=0, part={**THOUGHT_PART, "text": ""}),
    at("reasoning_text.delta", RS, 0, content_index=0, delta="Hm"),
    at("reasoning_text.delta", RS, 0, content_index=0, delta=", so"),
    at("reasoning_text.done", RS, 0, content_index=0, text="Hm, so"),
    at("content_part.done", RS, 0, content_index=0, part=THOUGHT_PART),
    of_item("done", 0, THOUGHT),
    of_item("added", 1, {**SAID, "content": [], **PROGRESS}),
    at("content_part.added", MSG, 1, content_index=0, part={**TEXT_PART, "text": ""}),
    at("output_text.delta", MSG, 1, content_index=0, delta="Yes", logprobs=[]),
    at("output_text.delta", MSG, 1, content_index=0, delta=".", logprobs=[]),
    at("output_text.done", MSG, 1, content_index=0, text="Yes.", logprobs=[]),
    at("content_part.done", MSG, 1, content_index=0, part=TEXT_PART),
    of_item("done", 1, SAID),
    of_item("added", 2, {**CALL, "arguments": "", **PROGRESS}),
    at("function_call_arguments.delta", FC, 2, delta='{"a":'),
    at("function_call_arguments.delta", FC, 2, delta="1}"),
    at("function_call_arguments.done", FC, 2, name="look", arguments='{"a":1}'),
    of_item("done", 2, CALL),
    {"type": "response.completed"},
]


def test_the_whole_order_of_a_turn_that_thinks_speaks_and_calls():
    events = stream(
        [
            [ReasoningDelta("Hm"), ReasoningDelta(", so")],
            [TextDelta("Yes")],
            [TextDelta(".")],
            [ToolCallStart(0, "call1", "look"), ToolCallDelta(0, '{"a":')],
            [ToolCallDelta(0, "1}"), ToolCallEnd(0)],
        ],
        include=["reasoning.encrypted_content"],
    )
    assert [brief(e) for e in events] == THINK_SPEAK_CALL
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert last["status"] == "completed"
    assert last["output"] == [THOUGHT, SAID, CALL]
    assert last["id"] == first["id"] == f"resp_{HANDLE}"
    assert last["created_at"] == 100
    assert last["completed_at"] >= 100
    assert last["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }


def test_thinking_is_a_summary_where_one_is_asked_for():
    events = stream([[ReasoningDelta("Hm")], [TextDelta("x")]], reasoning={"summary": "auto"})
    assert [e["type"].removeprefix("response.") for e in events[2:8]] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert {e["summary_index"] for e in events[3:7]} == {0}
    item = events[7]["item"]
    assert item["summary"] == [{"type": "summary_text", "text": "Hm"}]
    assert item["content"] == []
    assert "encrypted_content" not in item


def test_a_custom_call_streams_its_input():
    events = stream(
        [
            [ToolCallStart(0, "call1", "patch"), ToolCallDelta(0, '{"inp')],
            [ToolCallDelta(0, 'ut": "a\\')],
            [ToolCallDelta(0, 'n\\u00e9"}'), ToolCallEnd(0)],
        ]
    )
    assert [e["type"].removeprefix("response.") for e in events[2:-1]] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert [e["delta"] for e in events[3:5]] == ["a", "\né"]
    assert events[5]["input"] == "a\né"
    item = events[6]["item"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "a\né")
    assert item["id"] == f"ctc_{HANDLE}00"
    assert events[2]["item"]["input"] == ""


def test_a_call_into_a_namespace_says_so():
    events = stream([[ToolCallStart(0, "c", "team__ask"), ToolCallDelta(0, "{}"), ToolCallEnd(0)]])
    item = events[-1]["response"]["output"][0]
    assert (item["namespace"], item["name"]) == ("team", "ask")
    assert events[2]["item"]["namespace"] == "team"
    done = next(e for e in events if e["type"] == "response.function_call_arguments.done")
    assert done["name"] == "ask"


@pytest.mark.parametrize(
    "deltas",
    [
        [[TextDelta("Half")]],
        [[ReasoningDelta("Half")]],
        [[ToolCallStart(0, "c", "look"), ToolCallDelta(0, '{"a"')]],
        [[ToolCallStart(0, "c", "patch"), ToolCallDelta(0, '{"input": "ha')]],
        [],
    ],
)
def test_an_answer_that_was_cut_is_incomplete_to_the_last_item(deltas):
    events = stream(deltas, reason="length")
    last = events[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["completed_at"] is None
    assert [item["status"] for item in last["response"]["output"]] == ["incomplete"] * len(deltas)
    if deltas:
        assert events[-2]["type"] == "response.output_item.done"


def test_calls_in_one_turn_are_items_of_their_own():
    events = stream(
        [
            [ToolCallStart(0, "c0", "look"), ToolCallDelta(0, "{}"), ToolCallEnd(0)],
            [ToolCallStart(1, "c1", "patch"), ToolCallDelta(1, '{"input":"x"}'), ToolCallEnd(1)],
        ]
    )
    output = events[-1]["response"]["output"]
    assert [(item["type"], item["call_id"]) for item in output] == [
        ("function_call", "c0"),
        ("custom_tool_call", "c1"),
    ]
    assert [e["output_index"] for e in events if e["type"] == "response.output_item.done"] == [0, 1]


def test_a_failed_response_does_not_end_the_item_it_was_in():
    writer = encoder()
    frames = [*writer.first(USAGE)]
    done = [ToolCallStart(0, "c0", "look"), ToolCallDelta(0, "{}"), ToolCallEnd(0)]
    half = [ToolCallStart(1, "c1", "look"), ToolCallDelta(1, '{"a')]
    for delta in (done, half):
        frames += writer.next(Delta(0, delta), USAGE)
    events = read([*frames, *writer.failed(DeviceError("broken"), USAGE)])
    assert [e["type"] for e in events].count("response.output_item.done") == 1
    last = events[-1]
    assert (last["type"], last["sequence_number"]) == ("response.failed", len(events) - 1)
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "broken"}
    assert [item["call_id"] for item in last["response"]["output"]] == ["c0"]


def test_a_prompt_that_is_too_long_has_the_code_that_agents_know():
    events = read(encoder().failed(ContextOverflow(9, 8, "input"), USAGE))
    assert events[0]["response"]["error"]["code"] == "context_length_exceeded"
    assert events[0]["response"]["error"]["message"].startswith("prompt is too long: 9 tokens > 8")


def test_pings_are_numbered_events_that_change_nothing():
    writer = encoder()
    events = read([*writer.first(USAGE), writer.ping(), writer.ping()])
    events += read(writer.next(Delta(0, [TextDelta("x")]), USAGE))
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert [e["type"] for e in events[1:4]] == ["response.in_progress"] * 3


def test_log_probabilities_stand_at_the_text_when_included():
    logprobs = (Logprob(5, -0.5, ((5, -0.5), (6, -1.0))),)
    for include, count in (([], 0), (["message.output_text.logprobs"], 1)):
        writer = encoder(include=include)
        events = read(writer.next(Delta(0, [TextDelta("x")], logprobs), USAGE))
        delta = next(e for e in events if e["type"] == "response.output_text.delta")
        assert len(delta["logprobs"]) == count
        read(writer.next(Ended(0, "stop"), USAGE))
        whole = read(writer.last(USAGE))[0]["response"]["output"][0]["content"][0]
        assert whole["logprobs"] == delta["logprobs"]
    assert delta["logprobs"][0]["logprob"] == -0.5
    assert [t["logprob"] for t in delta["logprobs"][0]["top_logprobs"]] == [-0.5, -1.0]


def test_the_whole_reply_is_the_last_object_of_the_stream():
    deltas = [[ReasoningDelta("Hm")], [TextDelta("Yes")]]
    turn = [*(Delta(0, delta) for delta in deltas), Ended(0, "stop")]
    whole = encoder().whole(turn, USAGE)
    streamed = stream(deltas)[-1]["response"]
    assert {**whole, "completed_at": 0} == {**streamed, "completed_at": 0}


def test_only_what_may_be_stored_is():
    turn = [Delta(0, [TextDelta("Yes")]), Ended(0, "stop")]
    for store_it in (True, False):
        store = ResponseStore()
        encoder(store, store=store_it).whole(turn, USAGE)
        assert len(store) == store_it


def cuts(text, places):
    edges = [0, *sorted(p % (len(text) + 1) for p in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(st.text(), st.lists(st.integers(0, 1000)), st.booleans(), st.sampled_from(["", " ", "\n "]))
def test_any_cut_of_a_custom_calls_arguments_gives_its_input(text, places, ascii, blank):
    string = json.dumps(text, ensure_ascii=ascii)
    arguments = f'{blank}{{{blank}"input"{blank}:{blank}{string}{blank}}}'
    reader = InputText()
    assert "".join(reader.feed(piece) for piece in cuts(arguments, places)) == text
    assert reader.found


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"text": "x"}', '{"text": "x"}'),
        ('{"other": 1, "input": "x"}', "x"),
        ('{"input": 5}', '{"input": 5}'),
        ("[1]", "[1]"),
        ("", ""),
        ("no JSON", "no JSON"),
        ('{"input": "\\ud800 \\q"}', "\\ud800 \\q"),
        ('{"input": "half \\ud800 pair"}', "half \ufffd pair"),
        ('{"n": 1, "input": "half \\ud800 pair"}', "half \ufffd pair"),
    ],
)
def test_odd_arguments_of_a_custom_call_are_not_lost(arguments, text):
    call = [ToolCallStart(0, "c", "patch"), ToolCallDelta(0, arguments), ToolCallEnd(0)]
    events = stream([call])
    assert events[-1]["response"]["output"][0]["input"] == text
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == text
