"""Answers in channels (`<|channel|>analysis<|message|>...<|end|>`), as gpt-oss writes them.

An answer is a row of messages, each a header and a body; the header says what the body is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from headrace.chat.detokenizer import Detokenizer
from headrace.chat.stops import StopScanner
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.tools.core import new_call_id
from headrace.chat.tools.whole_text import WholeText
from headrace.chat.types import (
    ChatEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

CHANNEL, MESSAGE, CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
_BEGINS = ("<|start|>", CHANNEL)
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
MARKS = (*_BEGINS, MESSAGE, CONSTRAIN, *_ENDS)


def thought_words(text: str) -> list[str]:
    """The words of a turn's thinking, where it begins with that."""
    begun = text.lstrip().startswith(f"{CHANNEL}analysis")
    return text.partition("<|end|>")[0].split() if begun else []


class HarmonyReader:
    """Reads one answer, token by token, as `TurnReader` does for other families.

    The prompt ends behind `<|start|>assistant`, so the answer begins inside a header, or, if
    `in_body`, inside the answer's text. `analysis` is thinking, a recipient `functions.NAME` a
    call, all else text. A body that no header announces is text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        calls: bool,
        in_body: bool = False,
        stop: Sequence[str] = (),
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._marks = {
            token: mark for mark in MARKS if (token := tokenizer.id_of(mark)) is not None
        }
        self._detokenizer = Detokenizer(tokenizer, after_text=True)
        self._stops = StopScanner(stop)
        self._calls = calls
        self._new_id = new_id
        self._count = 0
        self._arguments = WholeText()
        self._header: str | None = None if in_body else ""  # None = inside a body
        self._kind = "text"  # of the body: text, thinking or call
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """A stop string was met."""
        return self._stops.stopped

    @property
    def stop_text(self) -> str | None:
        return self._stops.found

    def feed(self, token: int) -> list[ChatEvent]:
        """The events that became certain with this token."""
        if self.stopped:
            return []
        self.reasoning_tokens += self._header is None and self._kind == "thinking"
        mark = self._marks.get(token)
        if mark is None:
            return self._text(self._detokenizer.feed(token))
        return self._text(self._detokenizer.finish()) + self._mark(mark)

    def finish(self) -> list[ChatEvent]:
        """What was held back, and the end of a call; the answer is over."""
        if self.stopped:
            return []
        events = self._text(self._detokenizer.finish())
        return events if self.stopped else events + self._end()

    def _mark(self, mark: str) -> list[ChatEvent]:
        if mark == MESSAGE and self._header is not None:
            return self._begin(self._header)
        if mark in _ENDS or mark in _BEGINS:
            if self._header is not None:
                # Inside a header the marks only part its words.
                self._header += " "
                return []
            events = self._end()
            self._header, self._kind = "", "text"
            return events
        if self._header is not None:
            self._header += " "
        return []

    def _begin(self, header: str) -> list[ChatEvent]:
        self._header = None
        recipient = _RECIPIENT.search(header)
        if recipient and self._calls:
            self._kind = "call"
            self._count += 1
            self._arguments = WholeText()
            return [ToolCallStart(self._count - 1, self._new_id(), recipient[1])]
        self._kind = "thinking" if "analysis" in header.split() else "text"
        return []

    def _text(self, text: str) -> list[ChatEvent]:
        if self._header is not None:
            self._header += text
            return []
        if not text:
            return []
        if self._kind == "call":
            return self._more(self._arguments.feed(text))
        if self._kind == "thinking":
            return [ReasoningDelta(text)]
        out = self._stops.feed(text)
        return [TextDelta(out)] if out else []

    def _end(self) -> list[ChatEvent]:
        if self._header is not None:
            return []
        if self._kind == "call":
            return [*self._more(self._arguments.finish()), ToolCallEnd(self._count - 1)]
        held = self._stops.finish()
        return [TextDelta(held)] if held else []

    def _more(self, arguments: str) -> list[ChatEvent]:
        return [ToolCallDelta(self._count - 1, arguments)] if arguments else []
