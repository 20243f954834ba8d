"""Calls as only a model writes them, in every dialect: half characters, no numbers, cut calls."""

import json
import sys
from pathlib import Path

import httpx
import pytest
from scripted import scripted_server

from headrace.api import anthropic_wire

sys.path.append(str(Path(__file__).parents[1] / "chat"))
from families import EDIT, FAMILIES, renderer_of

HALF = "\\ud83d"
SAID = {"role": "user", "content": "hi"}
SCHEMA = dict(EDIT.parameters)
FUNCTION = {"name": "edit", "parameters": SCHEMA}
CHAT = {"messages": [SAID], "tools": [{"type": "function", "function": FUNCTION}]}
RESPONSES = {"input": "hi", "tools": [{"type": "function", **FUNCTION}]}
MESSAGES = {
    "messages": [SAID],
    "max_tokens": 400,
    "tools": [{"name": "edit", "input_schema": SCHEMA}],
}
PATHS = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES}


def posted(url, path, body):
    """The reply's JSON, or the JSON of all frames of a stream."""
    reply = httpx.post(url + path, json=body, timeout=20)
    assert reply.status_code == 200, reply.text
    if not body.get("stream"):
        return json.loads(reply.content, parse_constant=pytest.fail)
    frames = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    said = [json.loads(text, parse_constant=pytest.fail) for text in frames if text != "[DONE]"]
    assert not any(one.get("error") or one.get("type") == "response.failed" for one in said)
    return said


def edits_of(reply):
    """Arguments of the calls of `edit` in a reply that is not streamed."""
    if "choices" in reply:
        calls = reply["choices"][0]["message"].get("tool_calls", ())
        return [json.loads(call["function"]["arguments"]) for call in calls]
    if "output" in reply:
        items = [item for item in reply["output"] if item["type"] == "function_call"]
        return [json.loads(item["arguments"]) for item in items]
    return [block["input"] for block in reply["content"] if block["type"] == "tool_use"]


@pytest.mark.parametrize("name", ["hermes", "granite", "cohere", "apertus", "lfm", "qwen"])
def test_half_a_character_in_a_call(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    answer = family.answer.replace("🙂", HALF)
    with scripted_server(tmp_path, lambda _: answer, renderer=renderer_of(family)) as server:
        for path, body in PATHS.items():
            first, _ = edits_of(posted(server.url, path, body))
            assert first["path"].endswith(("\ufffd", HALF))
            posted(server.url, path, {**body, "stream": True})


def test_a_call_with_half_a_character_comes_back(tmp_path: Path) -> None:
    family = FAMILIES["hermes"]
    answers = iter([family.answer.replace("🙂", HALF), "Done."])
    with scripted_server(tmp_path, lambda _: next(answers), renderer=renderer_of(family)) as server:
        reply = posted(server.url, "/v1/messages", MESSAGES)
        uses = [block["id"] for block in reply["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use, "content": "ok"} for use in uses]
        turns = [
            SAID,
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": results},
        ]
        again = posted(server.url, "/v1/messages", {**MESSAGES, "messages": turns})
    assert again["content"][0]["text"] == "Done."


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["hermes", "granite", "cohere", "apertus"])
def test_a_number_that_json_does_not_have(name: str, number: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    answer = family.answer.replace("-3", number)
    with scripted_server(tmp_path, lambda _: answer, renderer=renderer_of(family)) as server:
        for path, body in PATHS.items():
            posted(server.url, path, body)
            posted(server.url, path, {**body, "stream": True})


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_a_call_without_its_end_is_incomplete(kind: str, tmp_path: Path) -> None:
    said = '<tool_call>\n{"name": "run", "arguments": {"input": "rm -r /tmp/old"}}\n</tool_call>'
    tool = {"type": kind, "name": "run"}
    body = {"input": "hi", "tools": [tool]}
    with scripted_server(
        tmp_path, lambda _: said, renderer=renderer_of(FAMILIES["hermes"])
    ) as server:
        whole = posted(server.url, "/v1/responses", body)
        length = len(said) - len("<tool_call></tool_call>") + 2
        assert whole["output"][0]["status"] == "completed"
        cut = posted(server.url, "/v1/responses", {**body, "max_output_tokens": length - 15})
        ended = posted(server.url, "/v1/responses", {**body, "max_output_tokens": length})
        frames = posted(
            server.url, "/v1/responses", {**body, "max_output_tokens": length - 15, "stream": True}
        )
    assert cut["status"] == "incomplete"
    assert cut["output"][0]["status"] == "incomplete"
    assert ended["output"][0]["status"] == "completed"
    (done,) = [one for one in frames if one["type"] == "response.output_item.done"]
    assert done["item"]["status"] == "incomplete"


@pytest.mark.parametrize("levels", [1, 250, 300, 900, 940, 950, 960, 970, 980, 5000])
def test_arguments_however_deep_can_be_written(levels: int) -> None:
    """What can just be read as JSON would fail where it is written, some calls further down."""
    deep = "[" * levels + "]" * levels
    message = {"content": []}
    block = {"type": "tool_use", "id": "t", "name": "edit", "input": ""}
    text = f'{{"path": {deep}}}'
    for event in (
        {"type": "content_block_start", "content_block": block},
        {
            "type": "content_block_delta",
            "delta": {"type": "input_json_delta", "partial_json": text},
        },
        {"type": "content_block_stop"},
    ):
        anthropic_wire._fold(message, event)

    def written(further: int) -> str:
        return written(further - 1) if further else json.dumps(message)

    assert written(300).count("[") == (levels if levels <= 250 else 0) + 1
