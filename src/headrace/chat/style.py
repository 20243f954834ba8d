"""What a family's answers look like, as data: delimiters of thinking and of calls, call syntax.

Found from the template's text and the vocabulary, never from a model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.chat.tokenizer import Tokenizer

CallSyntax = Literal["hermes", "qwen_xml", "harmony"]

# (open, close); the first pair whose closing mark stands in the template is taken.
_THINK_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
)
_CALL_MARKS = ("<tool_call>", "</tool_call>")
# A template that shows all words of a row writes calls in that syntax; the first row wins.
_SYNTAXES: tuple[tuple[CallSyntax, tuple[str, ...]], ...] = (
    ("qwen_xml", ("<tool_call>", "<function=", "<parameter=")),
    ("hermes", ("<tool_call>", "name", "arguments")),
)
_OTHER_SYNTAX_SIGNS = ("<arg_key>", "<invoke", "[TOOL_CALLS]", "<|tool_calls_section_begin|>")
# Variables by which templates switch thinking on and off.
_THINKING_SWITCHES = ("enable_thinking", "thinking")
# Variables by which templates keep or drop the thinking of earlier turns, and what keeps it.
_KEEP_SWITCHES = {
    "preserve_thinking": True,
    "preserved_thinking": True,
    "keep_past_thinking": True,
    "clear_thinking": False,
    "drop_thinking": False,
    "truncate_history_thinking": False,
}
_CHANNEL_END_MARKS = ("<|return|>", "<|call|>")
_END_MARKS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
_START_MARKS = (
    *("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>", "[INST]"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
)


@dataclass(frozen=True, slots=True)
class Delimiter:
    """A mark in the answer; `token` if the vocabulary has it as one token, else it is text."""

    text: str
    token: int | None


@dataclass(frozen=True, slots=True)
class Span:
    open: Delimiter
    close: Delimiter


@dataclass(frozen=True, slots=True)
class Channels:
    """Token ids of the marks of a family that answers in channels (gpt-oss)."""

    start: int
    channel: int
    message: int
    constrain: int
    end: int


@dataclass(frozen=True, slots=True)
class Style:
    """One checkpoint's way of answering.

    `syntax` is None when the template writes calls in a way not known here: then calls stay text
    and cannot be forced. `native_tools` tells whether the template itself describes tools.
    """

    think: Span | None
    call: Span
    syntax: CallSyntax | None
    native_tools: bool
    thinking_switch: str | None
    channels: Channels | None  # then thinking and calls are told by channel, not by delimiters
    end_ids: frozenset[int]
    start_ids: frozenset[int] = frozenset()  # tokens with which a message begins
    keep_thinking: Mapping[str, bool] = field(default_factory=dict)  # what keeps earlier thinking

    @property
    def cut_before(self) -> frozenset[int]:
        """Tokens with which a message or a call begins: a context edit may part from here on."""
        opens = (self.call.open.token,) if self.syntax is not None else ()
        return self.start_ids | {token for token in opens if token is not None}

    @property
    def cut_after(self) -> frozenset[int]:
        """Tokens that end a thinking or a call."""
        spans = [self.think] if self.think is not None else []
        if self.syntax is not None:
            spans.append(self.call)
        return frozenset(s.close.token for s in spans if s.close.token is not None)

    @property
    def reasons(self) -> bool:
        return self.think is not None


def detect_style(
    template: str | None, variables: frozenset[str], *, native_tools: bool, tokenizer: Tokenizer
) -> Style:
    """The style of a checkpoint with this template text.

    `variables` are the names the template reads; `native_tools` says that it renders tools.
    """
    source = template or ""
    think = next((pair for pair in _THINK_MARKS if pair[1] in source), None)
    syntax: CallSyntax | None = "hermes"
    channels = _channels(source, tokenizer)
    if channels is not None:
        think, syntax = None, "harmony"
    elif native_tools:
        other = any(sign in source for sign in _OTHER_SYNTAX_SIGNS)
        rows = (name for name, words in _SYNTAXES if all(word in source for word in words))
        syntax = None if other else next(rows, None)
    marks = (*_END_MARKS, *_CHANNEL_END_MARKS) if channels is not None else _END_MARKS
    ends = (tokenizer.id_of(mark) for mark in marks if mark in source)
    starts = (tokenizer.id_of(mark) for mark in _START_MARKS if mark in source)
    switch = next((name for name in _THINKING_SWITCHES if name in variables), None)
    return Style(
        think=_span(think, tokenizer) if think else None,
        call=_span(_CALL_MARKS, tokenizer),
        syntax=syntax,
        native_tools=native_tools,
        thinking_switch=switch if think else None,
        channels=channels,
        end_ids=frozenset(i for i in ends if i is not None and i in tokenizer.special_ids),
        start_ids=frozenset(i for i in starts if i is not None and i in tokenizer.special_ids),
        keep_thinking={name: on for name, on in _KEEP_SWITCHES.items() if name in variables},
    )


def _span(pair: tuple[str, str], tokenizer: Tokenizer) -> Span:
    """Both marks by id, or both as text: a pair is never mixed."""
    ids = [tokenizer.id_of(text) for text in pair]
    if None in ids:
        ids = [None, None]
    return Span(Delimiter(pair[0], ids[0]), Delimiter(pair[1], ids[1]))


def _channels(source: str, tokenizer: Tokenizer) -> Channels | None:
    names = ("start", "channel", "message", "constrain", "end")
    ids = [tokenizer.id_of(f"<|{name}|>") for name in names]
    if "<|channel|>" not in source or None in ids:
        return None
    return Channels(*(i for i in ids if i is not None))
