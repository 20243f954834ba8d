"""`context_management`: the edits of a conversation that a client asks for, before it is rendered.

The client sends the whole conversation again every time, so an edit is the same in every turn until
more of it has become old. Sizes are estimates, as nothing is turned into tokens yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.api.fields import Fields, shown
from headrace.chat.types import Message

Json = dict[str, Any]
Edit = Callable[[Sequence[Message]], tuple[list[Message], Json | None]]

THINKING, TOOL_USES = "clear_thinking_20251015", "clear_tool_uses_20250919"
CLEARED = "[cleared to save context]"
CHARS_PER_TOKEN = 4
MOST = 1 << 30


@dataclass(frozen=True, slots=True)
class _ToolUses:
    """Old results become a word. The defaults are the API's."""

    trigger: tuple[str, int] = ("input_tokens", 100_000)
    keep: int = 3
    at_least: int = 0  # tokens that must become free
    excluded: frozenset[str] = frozenset()
    inputs: bool = False  # the arguments, too

    def __call__(self, messages: Sequence[Message]) -> tuple[list[Message], Json | None]:
        calls = [call for message in messages for call in message.tool_calls]
        kind, value = self.trigger
        reached = len(calls) if kind == "tool_uses" else tokens_of(messages)
        early = calls[: max(0, len(calls) - self.keep)]
        old = frozenset(call.id for call in early if call.name not in self.excluded)
        edited = [self._without(message, old) for message in messages]
        count = sum(m.tool_call_id in old for m in messages if m.role == "tool")
        freed = tokens_of(messages) - tokens_of(edited)
        if reached <= value or not count or freed < max(1, self.at_least):
            return list(messages), None
        said = {"cleared_tool_uses": count, "cleared_input_tokens": freed}
        return edited, {"type": TOOL_USES, **said}

    def _without(self, message: Message, old: frozenset[str]) -> Message:
        if message.role == "tool" and message.tool_call_id in old:
            return replace(message, content=CLEARED)
        if not (self.inputs and message.tool_calls):
            return message
        calls = (replace(c, arguments="{}") if c.id in old else c for c in message.tool_calls)
        return replace(message, tool_calls=tuple(calls))


@dataclass(frozen=True, slots=True)
class _Thinking:
    """The thinking of all turns but the last `keep` that have one."""

    keep: int = 1

    def __call__(self, messages: Sequence[Message]) -> tuple[list[Message], Json | None]:
        turns = [i for i, message in enumerate(messages) if message.reasoning or message.sealed]
        old = frozenset(turns[: max(0, len(turns) - self.keep)])
        edited = [
            replace(message, reasoning=None, sealed=False) if i in old else message
            for i, message in enumerate(messages)
        ]
        if not old:
            return edited, None
        freed = tokens_of(messages) - tokens_of(edited)
        said = {"cleared_thinking_turns": len(old), "cleared_input_tokens": freed}
        return edited, {"type": THINKING, **said}


def tokens_of(messages: Sequence[Message]) -> int:
    """An estimate."""
    chars = 0
    for message in messages:
        chars += len(message.content) + len(message.reasoning or "")
        chars += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return chars // CHARS_PER_TOKEN


def parse_edits(body: Fields) -> tuple[Edit, ...] | None:
    """`context_management`, None where it is absent."""
    entry = body.child("context_management")
    if entry is None:
        return None
    edits: list[Edit] = []
    for edit in entry.children("edits") or []:
        kind = edit.required_text("type")
        if kind == THINKING:
            edits.append(_thinking(edit))
        elif kind == TOOL_USES:
            edits.append(_tool_uses(edit))
        else:
            raise edit.fault(
                "type",
                f"{shown(kind)} is not supported",
                expected=f"{THINKING} or {TOOL_USES}",
                fix="nothing is summarised here" if kind.startswith("compact") else "",
            )
        edit.done()
    entry.done()
    return tuple(edits)


def edited(
    messages: Sequence[Message], edits: Sequence[Edit]
) -> tuple[list[Message], tuple[Json, ...]]:
    """The conversation after all edits, and what the reply says of those that changed it."""
    kept, applied = list(messages), []
    for edit in edits:
        kept, said = edit(kept)
        if said is not None:
            applied.append(said)
    return kept, tuple(applied)


def _thinking(edit: Fields) -> _Thinking:
    keep = edit.take("keep")
    if keep is None:
        return _Thinking()
    if keep == "all":
        return _Thinking(MOST)
    entry = Fields(keep, edit.path("keep"))
    if entry.choice("type", ("thinking_turns", "all")) == "all":
        entry.done()
        return _Thinking(MOST)
    return _Thinking(_value(entry, 1))


def _tool_uses(edit: Fields) -> _ToolUses:
    made = _ToolUses()
    entry = edit.child("trigger")
    if entry is not None:
        kind = entry.choice("type", ("input_tokens", "tool_uses")) or "input_tokens"
        made = replace(made, trigger=(kind, _value(entry, 0)))
    entry = edit.child("keep")
    if entry is not None:
        entry.choice("type", ("tool_uses",))
        made = replace(made, keep=_value(entry, 0))
    entry = edit.child("clear_at_least")
    if entry is not None:
        entry.choice("type", ("input_tokens",))
        made = replace(made, at_least=_value(entry, 0))
    names = edit.items("exclude_tools") or []
    if not all(isinstance(name, str) for name in names):
        raise edit.fault("exclude_tools", f"found {shown(names)}", expected="names of tools")
    inputs = edit.flag("clear_tool_inputs") or False
    return replace(made, excluded=frozenset(names), inputs=inputs)


def _value(entry: Fields, least: int) -> int:
    value = entry.whole("value", least, MOST)
    if value is None:
        raise entry.fault("value", "missing", expected="a whole number")
    entry.done()
    return value
