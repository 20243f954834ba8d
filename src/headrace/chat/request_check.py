"""What every request must hold before it is rendered; errors name the client's field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.chat.schema_text import check_depth
from headrace.chat.template import RESERVED
from headrace.chat.types import ChatRequest
from headrace.errors import RequestError

MAX_MESSAGES = 10_000  # and calls: a template takes some seconds for so many


def check_request(request: ChatRequest) -> None:
    if not request.messages:
        raise RequestError("there are no messages", field="messages", expected="at least one")
    if len(request.messages) > MAX_MESSAGES:
        raise RequestError(
            f"{len(request.messages)} messages",
            field="messages",
            expected=f"at most {MAX_MESSAGES}",
            fix="summarise the conversation",
        )
    calls = sum(len(message.tool_calls) for message in request.messages)
    if calls > MAX_MESSAGES:
        raise RequestError(
            f"{calls} calls in the messages", field="messages", expected=f"at most {MAX_MESSAGES}"
        )
    if request.continue_last and request.messages[-1].role != "assistant":
        raise RequestError(
            f"the last message is of role {request.messages[-1].role}",
            field="continue_final_message",
            expected="an assistant's message to go on with",
        )
    taken = sorted(RESERVED & set(request.template_args))
    if taken:
        raise RequestError(
            f"chat_template_kwargs sets {', '.join(taken)}",
            field="chat_template_kwargs",
            expected="names the server does not set itself",
        )
    for i, tool in enumerate(request.tools):
        check_depth(tool.parameters, f"tools[{i}].function.parameters")
    check_depth(request.template_args, "chat_template_kwargs")
    for field, text in _texts(request):
        check_text(text, field)


def _texts(request: ChatRequest) -> Iterable[tuple[str, str]]:
    for i, message in enumerate(request.messages):
        yield f"messages[{i}].content", message.content
        yield f"messages[{i}].reasoning_content", message.reasoning or ""
        yield f"messages[{i}].name", message.name or ""
        yield f"messages[{i}].tool_call_id", message.tool_call_id or ""
        for n, call in enumerate(message.tool_calls):
            for part in (call.id, call.name, call.arguments):
                yield f"messages[{i}].tool_calls[{n}]", part
    for i, tool in enumerate(request.tools):
        yield f"tools[{i}].function.name", tool.name
        yield f"tools[{i}].function.description", tool.description
        yield from ((f"tools[{i}].function.parameters", text) for text in _strings(tool.parameters))
    for i, text in enumerate(request.stop):
        if not text:
            raise RequestError("an empty stop string", field=f"stop[{i}]", expected="some text")
        yield f"stop[{i}]", text
    yield from (("chat_template_kwargs", text) for text in _strings(request.template_args))


def _strings(value: Any) -> Iterator[str]:
    """All strings in a JSON value, keys too."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)


def check_text(text: str, field: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"character {error.start} is a lone surrogate, U+{ord(text[error.start]):04X}",
            field=field,
            expected="valid Unicode",
        ) from error
