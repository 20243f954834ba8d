"""Bodies of the Responses API -> calls: items become messages again."""

from __future__ import annotations

import json

import pytest
from responses_calls import USER, A, B, call, messages, output, parse, text

from headrace.chat.types import Message, ToolCall


def test_text_alone_is_a_users_message():
    assert parse("hi").ask.messages == (Message("user", "hi"),)


def test_every_role_keeps_its_place():
    assert messages(
        {"role": "developer", "content": "Rules"},
        {
            "type": "message",
            "role": "user",
            "content": [text("input_text", "a"), text("text", "b")],
        },
        {"role": "system", "content": "Note"},
        {
            "role": "assistant",
            "content": [text("output_text", "c"), {"type": "refusal", "refusal": "d"}],
        },
        instructions="Lead",
    ) == (
        Message("system", "Lead"),
        Message("system", "Rules"),
        Message("user", "ab"),
        Message("system", "Note"),
        Message("assistant", "cd"),
    )


def test_the_items_of_one_answer_become_one_message():
    assert messages(
        USER,
        {
            "type": "reasoning",
            "id": f"rs_{A}00",
            "summary": [],
            "content": [text("reasoning_text", "Hm")],
        },
        {
            "type": "message",
            "role": "assistant",
            "id": f"msg_{A}01",
            "status": "completed",
            "content": [text("output_text", "I look.")],
        },
        call("c1", id=f"fc_{A}02", status="completed"),
        call("c2", id=f"fc_{A}03"),
        output("c1"),
        output("c2", [text("input_text", "two"), text("input_text", " parts")]),
    ) == (
        Message("user", "hi"),
        Message(
            "assistant",
            "I look.",
            "Hm",
            (ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}")),
            handle=A,
        ),
        Message("tool", "done", tool_call_id="c1", name="look"),
        Message("tool", "two parts", tool_call_id="c2", name="look"),
    )


def test_an_image_in_a_result_is_said_to_be_none():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    found = messages(USER, call("c1"), output("c1", [text("input_text", "See: "), image]))
    assert found[2].content == "See: [an image stood here; this model reads text only]"


def test_without_handles_they_are_known_by_their_order():
    found = messages(
        USER,
        {"type": "reasoning", "summary": [text("summary_text", "Hm")]},
        {"role": "assistant", "content": "I look."},
        call("c1"),
        output("c1"),
        {"type": "reasoning", "id": "rs_other", "summary": [text("summary_text", "So")]},
        {"role": "assistant", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"type": "reasoning", "summary": [text("summary_text", "More")]},
        call("c2"),
    )
    assert [(m.role, m.content, m.reasoning, len(m.tool_calls)) for m in found] == [
        ("user", "hi", None, 0),
        ("assistant", "I look.", "Hm", 1),
        ("tool", "done", None, 0),
        ("assistant", "One", "So", 0),
        ("assistant", "Two", None, 0),
        ("assistant", "", "More", 1),
    ]


def test_parts_with_the_answers_handle_are_its_own_even_behind_results():
    found = messages(
        USER,
        call("c1", id=f"fc_{A}00"),
        output("c1"),
        call("c2", id=f"fc_{A}01"),
        output("c2"),
        call("c3", id=f"fc_{B}00"),
        output("c3"),
    )
    assert [(m.role, m.handle, len(m.tool_calls)) for m in found] == [
        ("user", None, 0),
        ("assistant", A, 2),
        ("tool", None, 0),
        ("tool", None, 0),
        ("assistant", B, 1),
        ("tool", None, 0),
    ]


def test_answers_with_different_handles_stay_apart():
    found = messages(
        USER,
        {"role": "assistant", "type": "message", "id": f"msg_{A}00", "content": "x"},
        call("c1", id=f"fc_{B}00"),
    )
    assert [m.handle for m in found] == [None, A, B]


@pytest.mark.parametrize("sealed", [True, False])
def test_thinking_that_came_back_as_a_handle_alone_is_sealed(sealed):
    item = {"type": "reasoning", "id": f"rs_{A}00", "summary": []}
    if sealed:
        item["encrypted_content"] = f"hr{A}"
    answer = messages(USER, item, {"role": "assistant", "content": "x"})[1]
    assert (answer.handle, answer.reasoning, answer.sealed) == (A, None, sealed)


def test_thinking_of_another_service_cannot_be_read_and_leaves_nothing():
    item = {"type": "reasoning", "id": "rs_x", "summary": [], "encrypted_content": "gAAAA"}
    assert messages(USER, item) == (Message("user", "hi"),)


def test_ids_whose_underscore_a_client_stripped_are_still_found():
    assert messages(USER, call("c1", id=f"fc{A}00"))[1].handle == A


def test_custom_calls_and_their_outputs():
    found = messages(
        USER,
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'é "x"\n'},
        output("c1", "ok", "custom_tool_call_output"),
    )
    assert json.loads(found[1].tool_calls[0].arguments) == {"input": 'é "x"\n'}
    assert found[2] == Message("tool", "ok", tool_call_id="c1", name="patch")


@pytest.mark.parametrize(
    ("item", "result", "name", "arguments", "said"),
    [
        (
            {"type": "local_shell_call", "call_id": "c", "id": "l", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c", "output": "a.txt"},
            "local_shell",
            {"command": ["ls"]},
            "a.txt",
        ),
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            output("c", [{"stdout": "a", "stderr": ""}], "shell_call_output"),
            "shell",
            {"commands": ["ls"]},
            '[{"stdout": "a", "stderr": ""}]',
        ),
        (
            {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file"}},
            {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
            "apply_patch",
            {"type": "delete_file"},
            "failed",
        ),
    ],
)
def test_built_in_calls_of_clients_are_calls(item, result, name, arguments, said):
    found = messages(USER, item, result)
    assert found[1].tool_calls[0].name == name
    assert json.loads(found[1].tool_calls[0].arguments) == arguments
    assert found[2] == Message("tool", said, tool_call_id="c", name=name)


def test_calls_that_a_service_made_itself_come_with_their_results():
    item = {
        "type": "mcp_call",
        "id": "m1",
        "server_label": "hub",
        "name": "find",
        "arguments": "{}",
    }
    found = messages(USER, {**item, "output": "7"}, {"type": "web_search_call", "id": "ws_1"})
    assert found[1].tool_calls == (ToolCall("m1", "hub__find", "{}"),)
    assert found[2] == Message("tool", "7", tool_call_id="m1", name="hub__find")
    assert len(found) == 3


def test_100000_items_are_read_in_linear_time():
    # One answer whose calls and results alternate: every part looks for its answer.
    items = [USER]
    for i in range(50_000):
        items += [call(f"c{i}", id=f"fc_{A}00"), output(f"c{i}")]
    found = messages(*items)
    assert len(found) == 50_002
    assert len(found[1].tool_calls) == 50_000
