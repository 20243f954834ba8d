"""Separates thinking from the answer; the rest passes on. Any cut of the stream gives the same."""

from __future__ import annotations

from headrace.chat.marks import Mark, Piece
from headrace.chat.types import ReasoningDelta


class ReasoningSplitter:
    """Turns pieces into `ReasoningDelta` and the pieces outside of thinking.

    Line breaks next to the delimiters belong to the template's layout, not to the text: those that
    begin and end the thinking, and those right after it, are left out. A call opened by its own
    token inside the thinking ends it, as models forget the closing mark there.
    """

    def __init__(self, *, in_reasoning: bool, goes_on: bool = False, lead: str = "") -> None:
        """`goes_on`: the thinking or the text began in the prompt; nothing here is its start.
        `lead`: a word of the layout with which a thinking begins."""
        self._lead = lead
        self.thinking = in_reasoning
        self._fresh = not goes_on  # nothing of this thinking, or of the turn, delivered yet
        self._after = False  # right behind a thinking: line breaks are layout
        self._held = ""  # line breaks (thinking) or blank space (start of the turn)

    def feed(self, piece: Piece) -> list[ReasoningDelta | Piece]:
        if isinstance(piece, Mark):
            return self._mark(piece)
        return self._think(piece) if self.thinking else self._say(piece)

    def finish(self) -> list[ReasoningDelta | Piece]:
        held, self._held = self._held, ""
        return [held] if held and not self.thinking else []

    def _mark(self, mark: Mark) -> list[ReasoningDelta | Piece]:
        if self.thinking:
            if mark.kind == "think_close":
                self._close()
                return []
            if mark.kind == "call_open" and mark.certain:
                self._close()
                return [mark]
            if mark.kind == "think_open" and self._fresh:
                return []
            return self._think(mark.text)
        if mark.kind == "think_open" and (mark.certain or self._fresh):
            held, self._held = self._held, ""
            self.thinking, self._fresh = True, True
            return [] if not held.strip() else [held]
        if mark.kind == "think_close" and (mark.certain or self._fresh):
            self._after, self._held = True, ""
            return []
        if mark.kind in ("think_open", "think_close"):
            return self._say(mark.text)
        out = self.finish()
        self._fresh, self._after = False, False
        return [*out, mark]

    def _close(self) -> None:
        self.thinking, self._after, self._held = False, True, ""
        self._fresh = True

    def _think(self, text: str) -> list[ReasoningDelta | Piece]:
        if self._fresh:
            text, self._held = (self._held + text).lstrip("\n"), ""
            if self._lead.startswith(text) and text != self._lead + "\n":
                self._held = text
                return []
            text = text.removeprefix(self._lead + "\n") if self._lead else text
            text = text.lstrip("\n")
            if not text:
                return []
            self._fresh = False
        text = self._held + text
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        return [ReasoningDelta(body)] if body else []

    def _say(self, text: str) -> list[ReasoningDelta | Piece]:
        if self._after:
            text = text.lstrip("\n")
            if not text:
                return []
            self._after = False
        if self._fresh:
            text, self._held = self._held + text, ""
            if not text.strip():
                self._held = text
                return []
            self._fresh = False
        return [text] if text else []
