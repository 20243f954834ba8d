"""The turns that were generated, kept so that they are recognised when a client sends them back.

A turn is found by its handle, by the id of one of its calls, or by what it says; it counts as the
same only if it is equal as data. The store is bounded by count and by bytes: the turns used least
recently go first. Any thread may use it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.chat.depth import MAX_LEVELS, height
from headrace.chat.tools.schema import resolved
from headrace.chat.types import (
    ChatEvent,
    Message,
    Prompt,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)

MAX_TURNS = 4096
MAX_BYTES = 64 << 20
_OVERHEAD_BYTES = 1024  # of a turn, its keys and its entries
_ALIKE = 4  # turns that say the same are kept apart up to this many


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """One answer: the tokens generated, and what a client was told of them.

    `opening` is the prompt's text from its last control token on. `whole` is False if the client
    was not told all of it (a stop string).
    """

    tokens: array[int]
    opening: str
    in_reasoning: bool
    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    whole: bool

    @property
    def nbytes(self) -> int:
        said = len(self.content) + len(self.reasoning)
        said += sum(len(c.id) + len(c.name) + len(c.arguments) for c in self.calls)
        return 4 * len(self.tokens) + 2 * said + _OVERHEAD_BYTES

    @classmethod
    def of(
        cls, tokens: Sequence[int], events: Iterable[ChatEvent], prompt: Prompt, *, whole: bool
    ) -> SpokenTurn:
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[tuple[str, str, list[str]]] = []
        for event in events:
            match event:
                case TextDelta(text):
                    content.append(text)
                case ReasoningDelta(text):
                    reasoning.append(text)
                case ToolCallStart(_, id, name):
                    calls.append((id, name, []))
                case ToolCallDelta(_, arguments):
                    calls[-1][2].append(arguments)
        return cls(
            tokens=array("i", tokens),
            opening=prompt.opening,
            in_reasoning=prompt.in_reasoning,
            content="".join(content),
            reasoning="".join(reasoning),
            calls=tuple(ToolCall(id, name, "".join(parts)) for id, name, parts in calls),
            whole=whole,
        )

    def says(self, message: Message, tools: Mapping[str, Tool]) -> bool:
        """Whether `message` is this turn, sent back: equal as data. A thinking may be missing, and
        a call's arguments may have gained what the tool's schema states as defaults."""
        return (
            self.content == message.content
            and message.reasoning in (None, "", self.reasoning)
            and len(self.calls) == len(message.tool_calls)
            and all(
                ours.name == theirs.name
                and same_arguments(ours.arguments, theirs.arguments, tools.get(ours.name))
                for ours, theirs in zip(self.calls, message.tool_calls, strict=True)
            )
        )


@dataclass(slots=True)
class _Entry:
    turn: SpokenTurn
    nbytes: int
    keys: list[str] = field(default_factory=list)


class EchoStore:
    """Turns by handle, and handles by call id and by what a turn says."""

    def __init__(self, *, max_turns: int = MAX_TURNS, max_bytes: int = MAX_BYTES) -> None:
        self._max_turns = max_turns
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by handle, last used last
        self._handles: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, handle: str, turn: SpokenTurn) -> None:
        """Remembers `turn`; one that alone is over the limit is not."""
        form = _form(turn.content, turn.calls)
        entry = _Entry(turn, turn.nbytes, [form, *(_call_key(call.id) for call in turn.calls)])
        with self._lock:
            self._drop(handle)
            if entry.nbytes > self._max_bytes:
                return
            self._entries[handle] = entry
            self.nbytes += entry.nbytes
            for key in entry.keys:
                alike = self._handles.setdefault(key, [])
                alike.append(handle)
                del alike[:-_ALIKE]
            while len(self._entries) > self._max_turns or self.nbytes > self._max_bytes:
                self._drop(next(iter(self._entries)))

    def find(self, message: Message) -> list[SpokenTurn]:
        """Turns that `message` may be, the likeliest first; equality is for the caller to see."""
        keys = [_call_key(call.id) for call in message.tool_calls]
        keys.append(_form(message.content, message.tool_calls))
        with self._lock:
            handles = [message.handle] if message.handle is not None else []
            for key in keys:
                handles += reversed(self._handles.get(key, ()))
            found = [h for h in dict.fromkeys(handles) if h in self._entries][:_ALIKE]
            for handle in found:
                self._entries.move_to_end(handle)
            return [self._entries[handle].turn for handle in found]

    def check(self) -> None:
        """Raises AssertionError if the books do not balance."""
        with self._lock:
            assert self.nbytes == sum(e.nbytes for e in self._entries.values()) <= self._max_bytes
            assert len(self._entries) <= self._max_turns
            for key, handles in self._handles.items():
                assert 0 < len(handles) <= _ALIKE, key
                assert all(key in self._entries[h].keys for h in handles), key

    def _drop(self, handle: str) -> None:
        entry = self._entries.pop(handle, None)
        if entry is None:
            return
        self.nbytes -= entry.nbytes
        for key in entry.keys:
            alike = self._handles.get(key, [])
            if handle in alike:
                alike.remove(handle)
            if not alike:
                self._handles.pop(key, None)


def same_arguments(ours: str, theirs: str, tool: Tool | None = None) -> bool:
    """Whether two texts of arguments are the same data, but for defaults of `tool` in `theirs`."""
    if ours == theirs:
        return True
    try:
        a, b = json.loads(ours or "{}"), json.loads(theirs or "{}")
        if isinstance(a, dict) and isinstance(b, dict) and tool is not None:
            b = _without_defaults(a, b, tool)
        return same_value(a, b)
    except (ValueError, RecursionError):
        return False


def same_value(a: Any, b: Any) -> bool:
    """JSON equality: numbers by value, keys in any order, true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b)


def _without_defaults(a: dict[str, Any], b: dict[str, Any], tool: Tool) -> dict[str, Any]:
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return b

    def added(key: str) -> bool:
        stated = resolved(properties.get(key), tool.parameters)
        return key not in a and "default" in stated and same_value(stated["default"], b[key])

    return {key: value for key, value in b.items() if not added(key)}


def _call_key(id: str) -> str:
    # Clients strip what is not a letter or a digit.
    return "call:" + "".join(char for char in id if char.isalnum())


def _form(content: str, calls: Iterable[ToolCall]) -> str:
    """What a turn says, whatever way its arguments are written."""
    said = [content, *((call.name, _canonical(call.arguments)) for call in calls)]
    text = json.dumps(said, ensure_ascii=True, sort_keys=True)
    return "form:" + hashlib.sha256(text.encode()).hexdigest()


def _canonical(arguments: str) -> Any:
    try:
        value = json.loads(arguments or "{}", parse_float=_number)
    except (ValueError, RecursionError):
        return arguments
    return value if height(value) <= MAX_LEVELS else arguments


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value
