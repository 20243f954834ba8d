"""What a family's answers look like, as data: delimiters of thinking and of calls, call syntax.

Found from the template's text and the vocabulary, never from a model's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.chat.tokenizer import Tokenizer
from headrace.chat.tools.body import Syntax
from headrace.chat.tools.syntaxes import DEEPSEEK, HERMES, HY, OTHER_SIGNS, SYNTAXES

# (open, close); the first pair whose closing mark stands in the template is taken.
_THINK_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|channel>", "<channel|>"),
    (f"<think{HY}>", f"</think{HY}>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
# The word with which a thinking between such marks begins.
_THINK_LEADS = {"<|channel>": "thought"}
# Variables by which templates switch thinking on and off.
_THINKING_SWITCHES = ("enable_thinking", "thinking", "thinking_mode")
_THINKING_WORDS = {"thinking_mode": ("enabled", "disabled")}
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
_END_MARKS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<turn|>",
    "[e~[",
    "<|eot|>",
    "<|eom_id|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|assistant_end|>",
)
_START_MARKS = (
    *("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>", "[INST]"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|header_start|>"),
    *("<｜User｜>", "<｜Assistant｜>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "]~b]"),
    *("<|START_OF_TURN_TOKEN|>", "<|start_of_role|>", "<|user_start|>", "<|assistant_start|>"),
    *(f"<｜hy_User{HY}｜>", f"<｜hy_Assistant{HY}｜>"),
    *("<|turn>", "[TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "<|begin|>", "<｜start▁of▁sentence｜>"),
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

    `calls` is None when the template writes calls in a way not known here: then calls stay text and
    cannot be forced. `native_tools` tells whether the template itself describes tools. A family
    that answers in channels has neither thinking nor calls between delimiters.
    """

    think: Span | None
    call: Span
    calls: Syntax | None
    native_tools: bool
    thinking_switch: str | None
    thinking_words: tuple[bool | str, bool | str]  # what switches thinking on and off
    channels: Channels | None  # then thinking and calls are told by channel, not by delimiters
    end_ids: frozenset[int]
    start_ids: frozenset[int] = frozenset()  # tokens with which a message begins
    atoms: Mapping[str, int] = field(default_factory=dict)  # a grammar names these by token
    wraps: tuple[Delimiter, ...] = ()  # marks around calls
    spelled: Mapping[int, str] = field(default_factory=dict)  # tokens that are a call's own text
    think_lead: str = ""  # a word of the layout with which a thinking begins
    keep_thinking: Mapping[str, bool] = field(default_factory=dict)  # what keeps earlier thinking

    @property
    def syntax(self) -> str | None:
        """The name of the way calls are written."""
        if self.channels is not None:
            return "harmony"
        return self.calls.name if self.calls is not None else None

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
    source = _spelled(template or "")
    think = next((pair for pair in _THINK_MARKS if pair[1] in source), None)
    channels = _channels(source, tokenizer)
    calls = _calls(source, native_tools=native_tools) if channels is None else None
    if channels is not None:
        think = None
    marks = (*_END_MARKS, *_CHANNEL_END_MARKS) if channels is not None else _END_MARKS
    ends = (tokenizer.id_of(mark) for mark in marks if mark in source)
    starts = (tokenizer.id_of(mark) for mark in _START_MARKS if mark in source)
    switch = next((name for name in _THINKING_SWITCHES if name in variables), None)
    return Style(
        think=_span(think, tokenizer) if think else None,
        call=_span((calls or HERMES).marks, tokenizer),
        calls=calls,
        native_tools=native_tools,
        thinking_switch=switch if think else None,
        thinking_words=_THINKING_WORDS.get(switch or "", (True, False)),
        channels=channels,
        end_ids=frozenset(i for i in ends if i is not None and i in tokenizer.special_ids),
        start_ids=frozenset(i for i in starts if i is not None and i in tokenizer.special_ids),
        wraps=tuple(
            delimiter
            for wrap in (calls.wraps if calls else ())
            for delimiter in [Delimiter(wrap, tokenizer.id_of(wrap))]
        ),
        spelled={
            token: text
            for text in (calls.spelled if calls else ())
            if (token := tokenizer.id_of(text)) is not None
        },
        atoms=_atoms(calls, tokenizer),
        think_lead=_THINK_LEADS.get(think[0], "") if think else "",
        keep_thinking={name: on for name, on in _KEEP_SWITCHES.items() if name in variables},
    )


def _spelled(source: str) -> str:
    """The template's text; one that makes its marks of a name and a suffix shows none of them."""
    suffix = re.search(r"set HYTK = '([^']*)'", source)
    return source if suffix is None else source.replace("{}", suffix[1])


def _calls(source: str, *, native_tools: bool) -> Syntax | None:
    """Where a template shows no tools they are told in text, in a way that its calls have."""
    if not native_tools:
        return DEEPSEEK if all(sign in source for sign in DEEPSEEK.signs) else HERMES
    rows = (row for row in SYNTAXES if all(sign in source for sign in row.signs))
    found = next(rows, None)
    if found is HERMES and any(sign in source for sign in OTHER_SIGNS):
        return None
    return found


def _atoms(calls: Syntax | None, tokenizer: Tokenizer) -> dict[str, int]:
    texts = (*calls.marks, *calls.wraps, *calls.spelled) if calls is not None else ()
    ids = {text: token for text in texts if (token := tokenizer.id_of(text)) is not None}
    return {text: i for text, i in ids.items() if is_mark(text) or i in tokenizer.special_ids}


def is_mark(text: str) -> bool:
    """Whether an added token that spells this is a mark, and not a piece of text."""
    return re.fullmatch(r"[<\[]\S+[>\]]", text) is not None


def _span(pair: tuple[str, str], tokenizer: Tokenizer) -> Span:
    """Both marks by id, or both as text: a pair is never mixed. One of them may be empty."""
    ids = [tokenizer.id_of(text) for text in pair]
    if any(token is None and text for token, text in zip(ids, pair, strict=True)):
        ids = [None, None]
    return Span(Delimiter(pair[0], ids[0]), Delimiter(pair[1], ids[1]))


def _channels(source: str, tokenizer: Tokenizer) -> Channels | None:
    names = ("start", "channel", "message", "constrain", "end")
    ids = [tokenizer.id_of(f"<|{name}|>") for name in names]
    if "<|channel|>" not in source or None in ids:
        return None
    return Channels(*(i for i in ids if i is not None))
