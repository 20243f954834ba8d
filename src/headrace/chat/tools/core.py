"""Calls in the text of an answer. A malformed call becomes text again; nothing here raises."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.chat.marks import Mark, Piece
from headrace.chat.tools.hermes import HermesCall
from headrace.chat.tools.qwen_xml import XmlCall
from headrace.chat.types import (
    ChatEvent,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)


class CallBody(Protocol):
    """One call between its delimiters, read as it comes.

    `name` is set once the call is certain to be one. `failed` is only ever set before that.
    """

    name: str | None
    failed: bool

    def feed(self, text: str) -> None: ...

    def closes(self, mark: Mark) -> bool:
        """False if `mark` stands inside a value and is part of it."""
        ...

    def end(self, *, cut: bool) -> None:
        """No more text comes: the closing mark was read or, if `cut`, the answer is over."""
        ...

    def take(self) -> str:
        """The arguments' JSON text since the last `take`; only meaningful once `name` is set."""
        ...


def new_call_id() -> str:
    """Letters and digits only: clients strip other characters."""
    return f"call{secrets.token_hex(12)}"


class CallReader:
    """Turns pieces outside of thinking into text and call events.

    The line breaks between text and a call, and after a call, are the template's layout and left
    out. The syntax is told from the first character of a call: `{` or `<`.
    """

    def __init__(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._new_id = new_id
        self._count = 0
        self._body: CallBody | None = None
        self._raw: list[str] = []  # the call so far, until it is certain to be one
        self.in_call = False  # then every piece belongs here, thinking marks too
        self._started = False
        self._after = False  # right behind a call
        self._spilled = False  # a malformed call became text: its closing mark is text too
        self._held = ""  # line breaks that may turn out to stand before a call

    @property
    def saw_call(self) -> bool:
        return self._count > 0

    def feed(self, piece: Piece) -> list[ChatEvent]:
        if self.in_call:
            return self._call(piece)
        if isinstance(piece, str):
            return self._text(piece)
        if piece.kind == "call_open":
            self._held = ""
            self._open(piece)
            return []
        spilled, self._spilled = self._spilled, False
        if piece.certain and not spilled:
            return []
        return self._text(piece.text)

    def finish(self) -> list[ChatEvent]:
        """What was held back, and the end of a call that the answer's end cut off."""
        if self.in_call:
            return self._close(None)
        held, self._held = self._held, ""
        return [TextDelta(held)] if held else []

    def _text(self, text: str) -> list[ChatEvent]:
        if not self._tools:
            return [TextDelta(text)] if text else []
        if self._after:
            text = text.lstrip("\n")
            if not text:
                return []
            self._after = False
        text = self._held + text
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        return [TextDelta(body)] if body else []

    def _open(self, mark: Mark) -> None:
        self.in_call, self._started, self._after = True, False, False
        self._spilled = False
        self._body, self._raw = None, [mark.text]

    def _call(self, piece: Piece) -> list[ChatEvent]:
        if isinstance(piece, Mark):
            if self._body is None or self._body.closes(piece):
                if piece.kind == "call_close":
                    return self._close(piece)
                if piece.kind == "call_open":
                    events = self._close(None)
                    self._open(piece)
                    return events
            piece = piece.text
        if not self._started:
            self._raw.append(piece)
        if self._body is None:
            piece = piece.lstrip()
            if not piece:
                return []
            self._body = self._choose(piece)
            if self._body is None:
                return self._spill(None)
        self._body.feed(piece)
        return self._spill(None) if self._body.failed else self._progress()

    def _choose(self, text: str) -> CallBody | None:
        if text[0] == "{":
            return HermesCall()
        return XmlCall(self._tools) if text[0] == "<" else None

    def _progress(self) -> list[ChatEvent]:
        body = self._body
        if body is None or body.name is None:
            return []
        events: list[ChatEvent] = []
        if not self._started:
            self._started, self._raw = True, []
            events.append(ToolCallStart(self._count, self._new_id(), body.name))
            self._count += 1
        if text := body.take():
            events.append(ToolCallDelta(self._count - 1, text))
        return events

    def _close(self, mark: Mark | None) -> list[ChatEvent]:
        if self._body is not None:
            self._body.end(cut=mark is None)
        if self._body is None or self._body.failed or self._body.name is None:
            return self._spill(mark)
        events = self._progress()
        events.append(ToolCallEnd(self._count - 1))
        self.in_call, self._after = False, True
        self._body = None
        return events

    def _spill(self, mark: Mark | None) -> list[ChatEvent]:
        """The call was none: all of it is text."""
        raw = "".join(self._raw) + (mark.text if mark is not None else "")
        self.in_call, self._body, self._raw = False, None, []
        self._spilled = mark is None
        return [TextDelta(raw)] if raw else []
