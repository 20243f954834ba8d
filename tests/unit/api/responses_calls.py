"""Tools, items and `parse` for tests of the Responses API's bodies."""

from __future__ import annotations

from headrace.api.fields import Fields
from headrace.api.responses import parse_response
from headrace.api.responses_store import ResponseStore
from headrace.engine.request import Sampling

A, B = "a" * 32, "b" * 32
USER = {"role": "user", "content": "hi"}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch", "description": "Changes a file."}
TEAM = {
    "type": "namespace",
    "name": "team",
    "description": "Other agents",
    "tools": [{"type": "function", "name": "ask"}, {"type": "custom", "name": "tell"}],
}


def parse(input="hi", kept=None, **more):
    body = Fields({"model": "m", "input": input, **more})
    return parse_response(body, Sampling(), ResponseStore() if kept is None else kept)


def messages(*items, **more):
    return parse(list(items), **more).ask.messages


def text(kind, text):
    return {"type": kind, "text": text}


def call(call_id, name="look", arguments="{}", **more):
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        **more,
    }


def output(id, value="done", kind="function_call_output"):
    return {"type": kind, "call_id": id, "output": value}
