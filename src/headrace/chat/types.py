"""The neutral requests and events of a chat: dialects translate to and from these only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["none", "minimal", "low", "medium", "high", "max"]
JsonSchema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model made; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message; an assistant's holds all of its turn: thinking, text and calls.

    `handle` came back with the turn (in a thinking's signature, encrypted content, or item ids) and
    finds what was generated. `sealed` says that it also stands for a thinking whose own text did
    not come back: then `reasoning` is None and is restored where the turn is still known.
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None  # of a `tool` message
    name: str | None = None
    handle: str | None = None  # of an answer: the opaque name this server gave it out under
    sealed: bool = False  # its thinking came back as the handle alone


INPUT = "input"  # the one argument of a custom tool


@dataclass(frozen=True, slots=True)
class TextInput:
    """What the text that a custom tool takes may be; `field` is where the client said so."""

    kind: Literal["text", "regex", "lark"] = "text"
    pattern: str = ""
    field: str = "tools"


@dataclass(frozen=True, slots=True)
class Tool:
    """`input` is given for a custom tool: its only argument is that text, under `INPUT`."""

    name: str
    description: str = ""
    parameters: JsonSchema = field(default_factory=dict)
    strict: bool = False
    deferred: bool = False  # left out of the prompt's list: a tool result describes it
    input: TextInput | None = None

    @property
    def grammar(self) -> TextInput | None:
        """What its text is held to, if to anything."""
        return self.input if self.input is not None and self.input.kind != "text" else None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`mode` "named" carries the tool's name."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    allowed: tuple[str, ...] = ()  # of auto and required: the only tools that may be called


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Constrains the text of the answer (not the reasoning before it)."""

    kind: Literal["text", "json_object", "json_schema", "regex", "lark"] = "text"
    schema: JsonSchema | None = None
    pattern: str | None = None  # of regex and lark


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    format: OutputFormat = OutputFormat()
    thinking: bool | None = None  # None = the family's default
    effort: Effort | None = None  # how much to think, in the nearest step the family knows
    thinking_budget: int | None = None  # tokens of thinking after which it is ended
    stop: tuple[str, ...] = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)
    continue_last: bool = False  # go on with the last assistant message
    truncate: bool = False  # of a conversation that is too long, leave out the oldest


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered request: token ids, and what the reader of the answer must know."""

    tokens: tuple[int, ...]
    text: str
    in_reasoning: bool  # the prompt ends inside an open think block
    anchors: tuple[int, ...] = ()  # positions at which messages begin
    opening: str = ""  # the end of the text, from its last control token on
    # Tokens at which an edit of the answer may begin: with which calls begin, thinking ends.
    cut_before: frozenset[int] = frozenset()
    cut_after: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    index: int
    arguments: str  # the next piece of the JSON text


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    index: int
    cut: bool = False  # the answer ran out of tokens within the call


ChatEvent = TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | ToolCallEnd
