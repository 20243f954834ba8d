"""Calls in the text of an answer. A malformed call becomes text again; nothing here raises."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from headrace.chat.marks import Mark, Piece
from headrace.chat.tools.body import CallBody, Syntax
from headrace.chat.tools.whole_text import WholeText, whole_text
from headrace.chat.types import (
    ChatEvent,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)


def new_call_id() -> str:
    """Letters and digits only: clients strip other characters."""
    return f"call{secrets.token_hex(12)}"


class CallReader:
    """Turns pieces outside of thinking into text and call events.

    The line breaks between text and a call, and after a call, are the template's layout and left
    out; so are the marks around calls. `syntax` is None where no calls are read.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        syntax: Syntax | None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._syntax = syntax
        self._new_id = new_id
        self._count = 0
        self._body: CallBody | None = None
        self._arguments = WholeText()
        self._raw: list[str] = []  # the call so far, until it is certain to be one
        self.in_call = False  # then every piece belongs here, thinking marks too
        self._started = False
        self._bare = bool(syntax and syntax.bare)  # a call may begin here without a mark
        self._unmarked = False  # this call did
        self._after = False  # right behind a call
        self._spilled = False  # a malformed call became text: its closing mark is text too
        self._held = ""  # layout that may turn out to stand before a call
        self._wrapped = False  # a mark that stands around calls is part of it

    def feed(self, piece: Piece) -> list[ChatEvent]:
        if self.in_call:
            return self._call(piece)
        if isinstance(piece, str):
            return self._text(piece)
        if piece.kind == "call_open":
            self._open(piece)
            return []
        if piece.kind == "wrap":
            if not (piece.certain or self._after):
                self._held, self._wrapped = self._held + piece.text, True
            return []
        spilled, self._spilled = self._spilled, False
        if piece.certain and not spilled:
            return []
        return self._text(piece.text)

    def finish(self) -> list[ChatEvent]:
        """What was held back, and the end of a call that the answer's end cut off."""
        if self.in_call:
            return self._close(None, cut=True)
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
        if self._bare and text.strip():
            self._bare = False
            assert self._syntax is not None
            if text.lstrip().startswith(self._syntax.bare):
                self._open(Mark("call_open", "", certain=False))
                self._unmarked = True
                return self._call(text)
        text = self._held + text
        if self._wrapped and not text.rstrip("\n")[len(self._held.rstrip("\n")) :].strip():
            self._held = text
            return []
        self._wrapped = False
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        return [TextDelta(body)] if body else []

    def _open(self, mark: Mark) -> None:
        self.in_call, self._started, self._after = True, False, False
        self._spilled = self._unmarked = self._bare = self._wrapped = False
        self._body, self._raw = None, [self._held, mark.text]
        self._held = ""

    def _call(self, piece: Piece) -> list[ChatEvent]:
        if isinstance(piece, Mark):
            if self._body is None or self._body.closes(piece):
                if piece.kind in ("call_close", "wrap"):
                    return self._close(piece, cut=False)
                if piece.kind == "call_open":
                    events = self._close(None, cut=True)
                    self._open(piece)
                    return events
            piece = piece.text
        if not self._started:
            self._raw.append(piece)
        if self._body is None:
            piece = piece.lstrip()
            if not piece:
                return []
            assert self._syntax is not None
            self._body = self._syntax.body(self._tools, piece[0])
            if self._body is None:
                return self._spill(None)
        body = self._body
        body.feed(piece)
        if body.failed or self._refused(body):
            return self._spill(None)
        events = self._progress()
        if body.ended:
            events += self._close(None, cut=False)
            events += self.feed(body.left) if body.left else []
        return events

    def _refused(self, body: CallBody) -> bool:
        """Without a mark only what names a tool is a call: it could be an answer in JSON."""
        return self._unmarked and body.name is not None and body.name not in self._tools

    def _progress(self) -> list[ChatEvent]:
        body = self._body
        if body is None or body.name is None:
            return []
        events: list[ChatEvent] = []
        if not self._started:
            self._started, self._raw = True, []
            events.append(self._start(body.name))
        return events + self._more(self._arguments.feed(body.take()))

    def _start(self, name: str) -> ToolCallStart:
        self._count += 1
        self._arguments = WholeText()
        return ToolCallStart(self._count - 1, self._new_id(), whole_text(name))

    def _more(self, arguments: str) -> list[ChatEvent]:
        return [ToolCallDelta(self._count - 1, arguments)] if arguments else []

    def _end(self) -> list[ChatEvent]:
        return [*self._more(self._arguments.finish()), ToolCallEnd(self._count - 1)]

    def _close(self, mark: Mark | None, *, cut: bool) -> list[ChatEvent]:
        body = self._body
        if body is not None:
            body.end(cut=cut)
        if body is None or body.failed or body.name is None or self._refused(body):
            return self._spill(mark)
        events = self._progress() + self._end()
        for name, arguments in body.more:
            events.append(self._start(name))
            events += self._more(self._arguments.feed(arguments)) + self._end()
        self.in_call, self._after = False, True
        self._body = None
        return events

    def _spill(self, mark: Mark | None) -> list[ChatEvent]:
        """The call was none: all of it is text."""
        raw = "".join(self._raw) + (mark.text if mark is not None else "")
        self.in_call, self._body, self._raw = False, None, []
        self._spilled = mark is None
        return [TextDelta(raw)] if raw else []
