"""Anthropic messages -> the neutral ones: blocks are sorted into text, thinking, calls and results.

Text of a model's own turn is joined as it was generated; blocks that others wrote are apart by a
blank line. A system message stays where it stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.api.anthropic_texts import block_text, without_billing
from headrace.api.fields import Fields, objects, shown
from headrace.chat.types import Message, ToolCall

ROLES = ("user", "assistant", "system")
MAX_MESSAGES = 100_000  # as the API has it
MAX_HANDLE = 128  # longer signatures are other servers'
REMINDER = ("<system-reminder>", "</system-reminder>")
LOADED = "The tool {name} can be called from now on"

Describe = Callable[[str], str | None]  # a deferred tool's name -> its description, when offered


@dataclass(slots=True)
class Conversation:
    """What was read so far; `loaded` are the deferred tools that a result has referred to."""

    describe: Describe
    messages: list[Message] = field(default_factory=list)
    turn: _Said | None = None  # the assistant's that goes on
    calls: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)

    def add(self, *messages: Message) -> None:
        if self.turn is not None:
            self.messages.append(self.turn.message())
            self.turn = None
        self.messages += messages

    def reference(self, block: Fields) -> str:
        name = block.required_text("tool_name")
        line = self.describe(name)
        if line is None:
            raise block.fault(
                "tool_name", f"{shown(name)} is not among the tools", expected="a deferred tool"
            )
        said = LOADED.format(name=name)
        if name in self.loaded:
            return f"{said}."
        self.loaded.add(name)
        return f"{said}:\n{line}"


def parse_system(body: Fields) -> list[Message]:
    """`system`: a string or text blocks, without the lines that change from request to request."""
    texts = [without_billing(text) for text in _texts(body, "system")]
    text = joined(texts)
    return [Message("system", text)] if text else []


def parse_messages(body: Fields, describe: Describe) -> Conversation:
    """Raises RequestError naming the block that is wrong."""
    entries = body.children("messages")
    if not entries or len(entries) > MAX_MESSAGES:
        found = "missing" if entries is None else f"{len(entries)} of them"
        raise body.fault("messages", found, expected=f"1 to {MAX_MESSAGES} messages")
    talk = Conversation(describe)
    for entry in entries:
        role = entry.choice("role", ROLES)
        if role == "system":
            text = joined([without_billing(text) for text in _texts(entry, "content")])
            if text:
                talk.add(Message("system", text))
        elif role == "assistant":
            _add_assistant(talk, entry)
        elif role == "user":
            _add_user(talk, entry)
        else:
            raise entry.fault("role", "missing", expected="one of " + ", ".join(ROLES))
        entry.done()
    talk.add()
    if not talk.messages:
        raise body.fault("messages", "nothing is said in them", expected="at least some text")
    return talk


def joined(texts: list[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _texts(entry: Fields, name: str) -> list[str]:
    value = entry.take(name)
    if value is None or isinstance(value, str):
        return [value or ""]
    texts = []
    for block in _blocks(entry, name, value):
        kind = block.required_text("type")
        if kind != "text":
            raise block.fault("type", f"found {shown(kind)}", expected="text")
        texts.append(block.required_text("text"))
        block.harmless("cache_control", "citations").done()
    return texts


def _blocks(entry: Fields, name: str, value: Any) -> list[Fields]:
    if not isinstance(value, list):
        raise entry.fault(name, f"found {shown(value)}", expected="a string or content blocks")
    return objects(value, entry.path(name))


def _add_user(talk: Conversation, entry: Fields) -> None:
    """Results come first, as the calls they answer came last; then what the user said."""
    value = entry.take("content")
    if value is None:
        raise entry.fault("content", "missing", expected="a string or content blocks")
    if isinstance(value, str):
        talk.add(Message("user", value))
        return
    results: list[Message] = []
    texts: list[str] = []
    for block in _blocks(entry, "content", value):
        kind = block.required_text("type")
        if kind == "tool_result":
            results.append(_result(talk, block))
        else:
            texts.append(block_text(block, kind))
        block.done()
    if results:
        # A client's note beside a result is no question of the user's: a template that looks for
        # the last question would drop all thinking since the one before.
        notes = [text for text in texts if _is_reminder(text)]
        texts = [text for text in texts if not _is_reminder(text)]
        last = results[-1]
        results[-1] = Message(
            "tool", joined([last.content, *notes]), tool_call_id=last.tool_call_id
        )
    talk.add(*results)
    if texts or not results:
        talk.add(Message("user", joined(texts)))


def _is_reminder(text: str) -> bool:
    stripped = text.strip()
    return stripped.startswith(REMINDER[0]) and stripped.endswith(REMINDER[1])


def _result(talk: Conversation, block: Fields) -> Message:
    call_id = block.required_text("tool_use_id")
    if call_id not in talk.calls:
        raise block.fault(
            "tool_use_id",
            f"{shown(call_id)} answers no call",
            expected="the id of a tool_use block in an earlier assistant message",
        )
    failed = block.flag("is_error") or False
    value = block.take("content")
    texts = [value] if isinstance(value, str) else []
    if value is not None and not isinstance(value, str):
        for part in _blocks(block, "content", value):
            kind = part.required_text("type")
            if kind == "tool_reference":
                texts.append(talk.reference(part))
                part.harmless("cache_control")
            else:
                texts.append(block_text(part, kind, in_result=True))
            part.done()
    block.harmless("cache_control", "toolset_name")
    text = joined(texts)
    if failed and "error" not in text[:40].lower():
        text = f"Error: {text}" if text else "Error"
    return Message("tool", text, tool_call_id=call_id)


def _add_assistant(talk: Conversation, entry: Fields) -> None:
    """Two in a row are one turn, as the API has it."""
    value = entry.take("content")
    if value is None:
        raise entry.fault("content", "missing", expected="a string or content blocks")
    if talk.turn is None:
        talk.turn = _Said()
    if isinstance(value, str):
        talk.turn.texts.append(value)
        return
    for block in _blocks(entry, "content", value):
        talk.turn.add(block, talk.calls)
        block.done()


@dataclass(slots=True)
class _Said:
    """One assistant's turn, block by block."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    handle: str | None = None

    def add(self, block: Fields, calls: set[str]) -> None:
        """`calls` learns the id of a call."""
        kind = block.required_text("type")
        if kind == "text":
            self.texts.append(block.required_text("text"))
            block.harmless("cache_control", "citations")
        elif kind == "thinking":
            self.thoughts.append(block.required_text("thinking"))
            self._found(block.text("signature"))
            block.harmless("cache_control")
        elif kind == "redacted_thinking":
            self._found(block.text("data"))
            block.harmless("cache_control")
        elif kind == "tool_use":
            call = _call(block)
            calls.add(call.id)
            self.calls.append(call)
        else:
            self.texts.append(block_text(block, kind))

    def _found(self, handle: str | None) -> None:
        if handle and len(handle) <= MAX_HANDLE:
            self.handle = self.handle or handle

    def message(self) -> Message:
        reasoning = "".join(self.thoughts) or None
        return Message(
            role="assistant",
            content="".join(self.texts),
            reasoning=reasoning,
            tool_calls=tuple(self.calls),
            handle=self.handle,
            sealed=self.handle is not None and reasoning is None,
        )


def _call(block: Fields) -> ToolCall:
    call_id, name = block.required_text("id"), block.required_text("name")
    given: Mapping[str, Any] | None = block.mapping("input")
    if given is None:
        raise block.fault("input", "missing", expected="an object of arguments")
    block.harmless("cache_control", "caller", "toolset_name")
    return ToolCall(call_id, name, json.dumps(given, ensure_ascii=False))
