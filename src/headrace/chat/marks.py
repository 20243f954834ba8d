"""Delimiters in an answer: a token of its own where the vocabulary has one, else found in the text.

Everything behind this works on pieces, text or `Mark`, and never looks for delimiters itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.chat.stops import held_back

if TYPE_CHECKING:
    from headrace.chat.style import Delimiter, Style

MarkKind = Literal["think_open", "think_close", "call_open", "call_close", "wrap"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A delimiter; `certain` if it came as its own token and cannot be text that looks like one."""

    kind: MarkKind
    text: str
    certain: bool


Piece = str | Mark


class MarkScanner:
    """Splits an answer's text at the style's delimiters, whatever the cuts.

    `calls` is False when the request offers no tools: then call marks are ordinary text.
    """

    def __init__(self, style: Style, *, calls: bool) -> None:
        self._by_token: dict[int, Mark] = {}
        self._by_text: dict[str, Mark] = {}
        if style.think is not None:
            self._add("think_open", style.think.open)
            self._add("think_close", style.think.close)
        if calls:
            self._add("call_open", style.call.open)
            self._add("call_close", style.call.close)
            for delimiter in style.wraps:
                self._add("wrap", delimiter)
        self._texts = tuple(self._by_text)
        self._held = ""

    def _add(self, kind: MarkKind, delimiter: Delimiter) -> None:
        if delimiter.token is not None:
            self._by_token[delimiter.token] = Mark(kind, delimiter.text, certain=True)
        elif delimiter.text:
            self._by_text[delimiter.text] = Mark(kind, delimiter.text, certain=False)

    def of_token(self, token: int) -> Mark | None:
        return self._by_token.get(token)

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now; a possible beginning of a mark is held back."""
        if not self._texts:
            return [text] if text else []
        window = self._held + text
        pieces: list[Piece] = []
        while found := self._first(window):
            at, mark = found
            if at:
                pieces.append(window[:at])
            pieces.append(mark)
            window = window[at + len(mark.text) :]
        keep = held_back(window, self._texts)
        self._held = window[len(window) - keep :]
        if len(window) > keep:
            pieces.append(window[: len(window) - keep])
        return pieces

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        return [held] if held else []

    def _first(self, window: str) -> tuple[int, Mark] | None:
        # Of two that begin together the longer one.
        places = [(at, -len(text), text) for text in self._texts if (at := window.find(text)) >= 0]
        if not places:
            return None
        at, _, text = min(places)
        return at, self._by_text[text]
