"""OpenAI messages -> the neutral ones: text parts are joined, others refused by name."""

from __future__ import annotations

import json

from headrace.api.custom_tools import custom_arguments
from headrace.api.fields import Fields, objects, shown
from headrace.chat.types import Message, ToolCall

ROLES = ("system", "developer", "user", "assistant", "tool")


def parse_messages(body: Fields) -> tuple[Message, ...]:
    """`messages`, in their order; a system message stays where it stands."""
    entries = body.children("messages")
    if not entries:
        raise body.fault(
            "messages", "missing" if entries is None else "empty", expected="at least one message"
        )
    calls: set[str] = set()
    messages = []
    for entry in entries:
        message = _message(entry)
        if message.role == "tool" and message.tool_call_id not in calls:
            raise entry.fault(
                "tool_call_id",
                f"{shown(message.tool_call_id)} answers no call",
                expected="the id of a call in an earlier assistant message",
            )
        calls |= {call.id for call in message.tool_calls}
        messages.append(message)
    return tuple(messages)


def _message(entry: Fields) -> Message:
    role = entry.choice("role", ROLES)
    if role is None:
        raise entry.fault("role", "missing", expected="one of " + ", ".join(ROLES))
    name = entry.text("name")
    if role == "assistant":
        message = _assistant(entry, name)
    else:
        content = _content(entry, role)
        if content is None:
            raise entry.fault("content", "missing", expected="a string or text parts")
        call_id = entry.text("tool_call_id")
        if role == "tool" and not call_id:
            raise entry.fault("tool_call_id", "missing", expected="the id of the call it answers")
        if role != "tool" and call_id is not None:
            raise entry.fault("tool_call_id", f"given with role {role}", expected="role tool")
        neutral = "system" if role == "developer" else role
        message = Message(
            role=neutral,  # type: ignore[arg-type]
            content=content,
            tool_call_id=call_id,
            name=name,
        )
    entry.done()
    return message


def _assistant(entry: Fields, name: str | None) -> Message:
    """As answered before, with what SDKs add when they send an answer back."""
    content = _content(entry, "assistant")
    refusal = entry.text("refusal")
    thoughts = [entry.text(key) for key in ("reasoning_content", "reasoning", "thinking")]
    calls = tuple(_tool_call(call) for call in entry.children("tool_calls") or [])
    entry.refuse("function_call", "send `tool_calls` instead")
    entry.refuse("audio", "this model reads text only")
    entry.refuse("annotations", "leave it out", unless=lambda v: v == [])
    if content is None and refusal is None and not calls and not any(thoughts):
        raise entry.fault("content", "missing", expected="text, or tool_calls")
    return Message(
        role="assistant",
        content=content or refusal or "",
        reasoning=next((thought for thought in thoughts if thought is not None), None),
        tool_calls=calls,
        name=name,
    )


def _tool_call(call: Fields) -> ToolCall:
    kind = call.choice("type", ("function", "custom"))
    call.whole("index", 0, 1 << 20)
    if kind == "custom":
        return _custom_call(call)
    function = call.child("function")
    if function is None:
        raise call.fault("function", "missing", expected="an object with name and arguments")
    name = function.required_text("name")
    arguments = function.take("arguments")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if arguments is not None and not isinstance(arguments, str):
        raise function.fault("arguments", f"found {shown(arguments)}", expected="JSON text")
    function.done()
    call_id = call.required_text("id")
    call.done()
    return ToolCall(id=call_id, name=name, arguments=arguments or "{}")


def _custom_call(call: Fields) -> ToolCall:
    custom = call.child("custom")
    if custom is None:
        raise call.fault("custom", "missing", expected="an object with name and input")
    made = ToolCall(
        id=call.required_text("id"),
        name=custom.required_text("name"),
        arguments=custom_arguments(custom.required_text("input")),
    )
    custom.done()
    call.done()
    return made


def _content(entry: Fields, role: str) -> str | None:
    value = entry.take("content")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise entry.fault("content", f"found {shown(value)}", expected="a string or text parts")
    texts = []
    for part in objects(value, entry.path("content")):
        kind = part.required_text("type")
        if kind == "text":
            texts.append(part.required_text("text"))
        elif kind == "refusal" and role == "assistant":
            texts.append(part.required_text("refusal"))
        else:
            raise part.fault(
                "type",
                f"{shown(kind)} parts are not supported",
                expected="text: this model reads text only",
            )
        part.harmless("cache_control", "prompt_cache_breakpoint").done()
    return "".join(texts)
