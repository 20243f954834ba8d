"""Messages in the shape one template accepts: nothing a client said is lost, it only moves."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from headrace.chat.template import CallIds, Shape
from headrace.chat.types import Message, Tool, ToolCall
from headrace.errors import RequestError

_VOLATILE = re.compile(r"^x-anthropic-billing-header:[^\n]*\n*", re.MULTILINE)
_TOOL_TEXT = """You can call functions. One line of JSON describes each of them:
<tools>
{lines}
</tools>
To call a function, answer with its name and an object of arguments, like this:
<tool_call>
{{"name": "function_name", "arguments": {{"argument": "value"}}}}
</tool_call>
Its result comes back between <tool_response> and </tool_response>."""
_DEEPSEEK_TEXT = """## Tools
You can call functions. One line of JSON describes each of them:

{lines}

Calls come at the end of an answer, all together, each with its name and an object of arguments:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function_name<｜tool▁sep｜>{{"argument": "value"}}\
<｜tool▁call▁end｜><｜tool▁calls▁end｜>"""


def template_messages(
    messages: Sequence[Message], tools: Sequence[Tool], shape: Shape
) -> list[dict[str, Any]]:
    """`messages` as the template's own dictionaries.

    Where a template cannot express something it is said in text: tools and calls in JSON between
    `<tool_call>` marks, a system message it refuses as part of the user's next message (at the
    start) or between `<system>` marks where it stands (later on). Lines that differ in every
    session and say nothing to a model are left out.
    Raises RequestError if a call's arguments must be an object and are not.
    """
    native = shape.tools or shape.calls
    if native and not shape.arguments_text:
        # Before anything moves: an error names the message as the client numbered it.
        for i, message in enumerate(messages):
            for n, call in enumerate(message.tool_calls):
                _parsed(call, f"messages[{i}].tool_calls[{n}].function.arguments")
    shaped = with_call_ids(_without_volatile(messages), shape.call_ids)
    if shape.single_call:
        shaped = _one_call_a_turn(shaped)
    if not shape.tools:
        if not shape.calls:
            shaped = [_calls_as_text(message) for message in shaped]
        if tools:
            text = (_DEEPSEEK_TEXT if shape.calls else _TOOL_TEXT).format(
                lines="\n".join(tool_line(tool) for tool in tools)
            )
            shaped.insert(0, Message("system", text))
            shaped = _lead_merged(shaped)
    if not shape.system:
        shaped = _system_in_user(shaped)
    elif not shape.later_system:
        shaped = _later_system_folded(_lead_merged(shaped))
    if shape.alternating:
        shaped = _users_merged(shaped)
    return [_as_dict(message, shape) for message in shaped]


def with_call_ids(messages: Sequence[Message], ids: CallIds) -> list[Message]:
    """The same conversation; calls and results have ids as the template takes them, and results
    the name of what was called."""
    known: dict[str, tuple[str, str]] = {}  # the client's id -> ours, name
    count = 0
    shaped: list[Message] = []
    for message in messages:
        calls: list[ToolCall] = []
        for call in message.tool_calls:
            new = _call_id(call, count, ids)
            count += 1
            known[call.id] = (new, call.name)
            calls.append(replace(call, id=new))
        if message.role == "tool" and message.tool_call_id is not None:
            plain = ToolCall(message.tool_call_id, message.name or "tool", "")
            new, name = known.get(message.tool_call_id, (_call_id(plain, 0, ids), message.name))
            shaped.append(replace(message, tool_call_id=new, name=message.name or name))
        else:
            shaped.append(replace(message, tool_calls=tuple(calls)) if calls else message)
    return shaped


def _one_call_a_turn(messages: list[Message]) -> list[Message]:
    """A turn with several calls as several turns, each with its results behind it."""
    shaped: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if len(message.tool_calls) < 2:
            shaped.append(message)
            continue
        results: list[Message] = []
        while at < len(messages) and messages[at].role == "tool":
            results.append(messages[at])
            at += 1
        for n, call in enumerate(message.tool_calls):
            first = message if n == 0 else Message("assistant")
            shaped.append(replace(first, tool_calls=(call,)))
            shaped += [result for result in results if result.tool_call_id == call.id]
        known = {call.id for call in message.tool_calls}
        shaped += [result for result in results if result.tool_call_id not in known]
    return shaped


def _call_id(call: ToolCall, count: int, ids: CallIds) -> str:
    match ids:
        case "nine":
            if len(call.id) == 9 and call.id.isalnum():
                return call.id
            return hashlib.sha256(call.id.encode()).hexdigest()[:9]
        case "indexed":
            return f"functions.{call.name}:{count}"
    return call.id


def tool_dict(tool: Tool) -> dict[str, Any]:
    """A tool as templates read it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = dict(tool.parameters) or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def tool_line(tool: Tool) -> str:
    return json.dumps(tool_dict(tool), ensure_ascii=False)


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _lead_merged(messages: list[Message]) -> list[Message]:
    """The system messages at the start as one."""
    lead = 0
    while lead < len(messages) and messages[lead].role == "system":
        lead += 1
    if lead < 2:
        return messages
    text = _joined(message.content for message in messages[:lead])
    return [Message("system", text), *messages[lead:]]


def _without_volatile(messages: Sequence[Message]) -> list[Message]:
    """Without billing lines at the start: no two sessions would share a prefix behind one."""
    shaped = list(messages)
    for i, message in enumerate(shaped):
        if message.role != "system":
            break
        content = _VOLATILE.sub("", message.content)
        shaped[i] = replace(message, content=content)
    left = [
        m for m, before in zip(shaped, messages, strict=True) if m.content or not before.content
    ]
    return left or shaped


def _later_system_folded(messages: list[Message]) -> list[Message]:
    """Behind a tool's result it joins that, as many templates drop all thinking before a user's
    turn; elsewhere it is a user's message, marked as what it is."""
    shaped = messages[:1]
    for message in messages[1:]:
        if message.role != "system":
            shaped.append(message)
            continue
        text = f"<system>\n{message.content}\n</system>"
        if shaped[-1].role == "tool":
            shaped[-1] = replace(shaped[-1], content=_joined([shaped[-1].content, text]))
        else:
            shaped.append(Message("user", text))
    return shaped


def _system_in_user(messages: list[Message]) -> list[Message]:
    """System text in front of the next user message, or as one of its own if none follows."""
    shaped: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "system":
            waiting.append(message.content)
        elif message.role == "user" and waiting:
            shaped.append(replace(message, content=_joined([*waiting, message.content])))
            waiting = []
        else:
            shaped.append(message)
    if waiting:
        shaped.append(Message("user", _joined(waiting)))
    return shaped


def _users_merged(messages: list[Message]) -> list[Message]:
    shaped: list[Message] = []
    run: list[str] = []
    for message in messages:
        if message.role == "user":
            run.append(message.content)
            continue
        if run:
            shaped.append(Message("user", _joined(run)))
            run = []
        shaped.append(message)
    if run:
        shaped.append(Message("user", _joined(run)))
    return shaped


def _calls_as_text(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")
    if not message.tool_calls:
        return message
    calls = "\n".join(_call_text(call) for call in message.tool_calls)
    text = f"{message.content}\n{calls}" if message.content else calls
    return replace(message, content=text, tool_calls=())


def _call_text(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    arguments = call.arguments.strip() or "{}"
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _as_dict(message: Message, shape: Shape) -> dict[str, Any]:
    content: Any = message.content
    if shape.parts:
        content = [{"type": "text", "text": content}]
    out: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning is not None:
        for key in shape.reasoning_keys:
            out[key] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if shape.arguments_text else _parsed(call),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def _parsed(call: ToolCall, field: str = "messages") -> dict[str, Any]:
    if not call.arguments.strip():
        return {}
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the arguments of the call {call.name} are not JSON: {error}",
            field=field,
            expected="the text of a JSON object",
        ) from error
    if not isinstance(value, dict):
        raise RequestError(
            f"the arguments of the call {call.name} are a JSON {type(value).__name__}",
            field=field,
            expected="the text of a JSON object",
        )
    return value
