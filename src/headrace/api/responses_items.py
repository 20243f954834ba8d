"""Input items of the Responses API -> neutral messages, in their order.

Items of one answer (reasoning, text, calls) become one message again; they are known by the handle
in their ids, else by standing together. Fields of an item beyond its content are what servers add;
they carry no wish and are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.api.call import NO_IMAGE
from headrace.api.custom_tools import custom_arguments
from headrace.api.errors import NotFound
from headrace.api.fields import Fields, objects, shown
from headrace.api.responses_tools import flat_name
from headrace.chat.types import Message, Role, ToolCall

Json = dict[str, Any]
Find = Callable[[str], Json | None]  # a stored item by its id

ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
NO_CONTENT = ("web_search_call", "file_search_call", "mcp_list_tools")  # of a hosted service
# Built-in calls that clients run: item -> the function's name and where its arguments stand.
BUILT_IN = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
OUTPUTS = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
)
HANDLE = re.compile(r"(?:hr|rs|msg|fc|ctc)_?([0-9a-f]{32})[0-9a-f]{0,8}")
REASONING, TEXT, CALL = range(3)  # the order within one answer


def handle_in(*ids: object) -> str | None:
    """The handle of the answer that one of these item ids or opaque contents comes from."""
    for text in ids:
        if isinstance(text, str) and (match := HANDLE.fullmatch(text)):
            return match[1]
    return None


@dataclass(slots=True)
class _Draft:
    role: Role
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    handle: str | None = None
    sealed: bool = False
    stage: int = REASONING
    tool_call_id: str | None = None
    name: str | None = None

    def message(self) -> Message:
        return Message(
            role=self.role,
            content="".join(self.content),
            reasoning="".join(self.reasoning) if self.reasoning else None,
            tool_calls=tuple(self.calls),
            tool_call_id=self.tool_call_id,
            name=self.name,
            handle=self.handle,
            sealed=self.sealed and not self.reasoning,
        )


class Transcript:
    """Takes items one by one; `messages` at the end."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._drafts: list[_Draft] = []
        self._answer: _Draft | None = None  # the last answer, while only results follow it
        self._called: dict[str, str] = {}  # call id -> the model's name of the tool
        self.tools: list[Fields] = []  # of `additional_tools` items

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(draft.message() for draft in self._drafts)

    def add(self, item: Fields) -> None:
        """Raises RequestError naming the field that is wrong."""
        kind = item.text("type")
        if kind is None:
            kind = "message" if item.has("role") else "item_reference" if item.has("id") else None
        if kind is None:
            raise item.fault("type", "missing", expected="the kind of item")
        if kind == "item_reference":
            found = self._find(item.required_text("id"))
            if found is None:
                raise NotFound(
                    f"{item.path('id')}: no item has this id",
                    field=item.path("id"),
                    expected="an item of a response that is still stored",
                    fix="send the item itself",
                )
            item, kind = Fields(found, item.path("id")), str(found["type"])
        if kind in OUTPUTS:
            self._output(item, kind)
        elif kind not in NO_CONTENT:
            self._add(item, kind)

    def _add(self, item: Fields, kind: str) -> None:
        match kind:
            case "message":
                self._message(item)
            case "reasoning":
                self._reasoning(item)
            case "function_call":
                name = flat_name(item.text("namespace"), item.required_text("name"))
                self._call(item, name, _arguments(item))
            case "custom_tool_call":
                name = flat_name(item.text("namespace"), item.required_text("name"))
                self._call(item, name, custom_arguments(item.required_text("input")))
            case "mcp_call":
                self._mcp_call(item)
            case "additional_tools":
                self.tools += item.children("tools") or []
            case _ if kind in BUILT_IN:
                name, place = BUILT_IN[kind]
                action = item.mapping(place)
                if action is None:
                    raise item.fault(place, "missing", expected="an object")
                self._call(item, name, json.dumps(action, ensure_ascii=False))
            case _:
                raise item.fault(
                    "type",
                    f"items of type {shown(kind)} are not supported",
                    expected="message, reasoning, calls of functions and their outputs",
                )

    def _message(self, item: Fields) -> None:
        role = item.choice("role", ROLES)
        if role is None:
            raise item.fault("role", "missing", expected="one of " + ", ".join(ROLES))
        text = _text(item, "content", item.take("content"))
        if role != "assistant":
            self._drafts.append(_Draft(ROLES[role], [text]))
            self._answer = None
            return
        self._part(TEXT, handle_in(item.text("id"))).content.append(text)

    def _reasoning(self, item: Fields) -> None:
        sealed = handle_in(item.take("encrypted_content"))
        handle = sealed or handle_in(item.text("id"))
        text = _joined_parts(item, "content") or _joined_parts(item, "summary")
        if text or handle:
            draft = self._part(REASONING, handle)
            if text:
                draft.reasoning.append(text)
            draft.sealed = draft.sealed or (sealed is not None and not text)

    def _call(self, item: Fields, name: str, arguments: str) -> str:
        """Returns the call's id."""
        item_id = item.text("id")
        call_id = item.text("call_id") or item_id
        if not call_id:
            raise item.fault("call_id", "missing", expected="the id that its output names")
        draft = self._part(CALL, handle_in(item_id))
        draft.calls.append(ToolCall(call_id, name, arguments or "{}"))
        self._called[call_id] = name
        return call_id

    def _mcp_call(self, item: Fields) -> None:
        """A call that a hosted service made, with its result."""
        name = flat_name(item.text("server_label"), item.required_text("name"))
        call_id = self._call(item, name, _arguments(item))
        output, error = item.text("output"), item.take("error")
        text = output if output is not None else shown(error) if error is not None else ""
        self._drafts.append(_Draft("tool", [text], tool_call_id=call_id, name=name))

    def _output(self, item: Fields, kind: str) -> None:
        call_id = item.text("call_id")
        if not call_id and kind == "local_shell_call_output":
            call_id = item.text("id")
        if not call_id:
            raise item.fault("call_id", "missing", expected="the id of the call it answers")
        if call_id not in self._called:
            raise item.fault(
                "call_id",
                f"no call has the id {shown(call_id)}",
                expected="the id of a call that stands before its output",
            )
        value = item.take("output")
        if value is None and kind == "apply_patch_call_output":
            value = item.text("status") or ""
        if kind == "shell_call_output" and isinstance(value, list):
            value = json.dumps(value, ensure_ascii=False)
        text = _text(item, "output", value)
        name = self._called[call_id]
        self._drafts.append(_Draft("tool", [text], tool_call_id=call_id, name=name))

    def _part(self, stage: int, handle: str | None) -> _Draft:
        """The answer that a part at this stage belongs to, a new one where it begins one.

        Parts with the handle of the last answer are its own, even behind results of its calls.
        """
        last = self._answer
        if last is not None:
            same = handle is not None and handle == last.handle
            at_end = self._drafts[-1] is last
            strangers = handle is not None and last.handle is not None
            follows = stage > last.stage or (stage == last.stage and stage != TEXT)
            if same or (at_end and follows and not strangers):
                last.handle = last.handle or handle
                last.stage = max(stage, last.stage)
                return last
        self._answer = _Draft("assistant", handle=handle, stage=stage)
        self._drafts.append(self._answer)
        return self._answer


def read_items(items: Sequence[Any], path: str, transcript: Transcript) -> None:
    for item in objects(list(items), path):
        transcript.add(item)


def _arguments(item: Fields) -> str:
    value = item.take("arguments")
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        raise item.fault("arguments", f"found {shown(value)}", expected="JSON text")
    return value


def _text(item: Fields, name: str, value: Any) -> str:
    """A string, or text parts joined; `value` is that of the field `name`."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise item.fault(name, f"found {shown(value)}", expected="a string or text parts")
    return _parts(value, item.path(name), in_result=name == "output")


def _joined_parts(item: Fields, name: str) -> str:
    return _parts(item.items(name) or [], item.path(name))


def _parts(values: list[Any], path: str, *, in_result: bool = False) -> str:
    texts = []
    for part in objects(values, path):
        kind = part.required_text("type")
        if kind in TEXT_PARTS:
            texts.append(part.required_text("text"))
        elif kind == "refusal":
            texts.append(part.required_text("refusal"))
        elif kind == "input_image" and in_result:
            texts.append(NO_IMAGE)
        else:
            raise part.fault(
                "type",
                f"{shown(kind)} parts are not supported",
                expected="input_text or output_text: this model reads text only",
            )
    return "".join(texts)
