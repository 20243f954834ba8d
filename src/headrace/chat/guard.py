"""Client text that spells control tokens: kept apart through the template, and encoded as text."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.chat.style import Style
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.types import Message, Tool, ToolCall

MAX_OPENING = 128  # characters in which a turn is opened


class Guard:
    """Replaces what spells a control token in a client's text by a word the template copies.

    After rendering, the words tell where that text stands, and it is encoded as plain text.
    """

    def __init__(self, tokenizer: Tokenizer, style: Style) -> None:
        spans = (style.call, style.think) if style.think else (style.call,)
        marks = {d.text for span in spans for d in (span.open, span.close)}
        control = (t for t, i in tokenizer.added.items() if i in tokenizer.special_ids and t)
        texts = sorted(
            (text for text in control if text not in marks),
            key=len,
            reverse=True,
        )
        self._spelled = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._nonce = f"q{secrets.token_hex(12)}"
        self._numbers = itertools.count()
        self._words: dict[str, str] = {}  # word -> the text it stands for
        self._of_text: dict[str, str] = {}

    def opening(self, text: str) -> str:
        """The end of a rendered text from its last control token on; empty if a client wrote it."""
        tail = text[-MAX_OPENING:]
        begins = [match.start() for match in self._spelled.finditer(tail)] if self._spelled else []
        tail = tail[begins[-1] if begins else 0 :]
        return "" if self._nonce in tail else tail

    def new_word(self) -> str:
        """A word no client could have written. Plain ASCII, so that templates copy it."""
        return f"{self._nonce}x{next(self._numbers)}x"

    def text(self, text: str) -> str:
        return self._spelled.sub(self._word, text) if self._spelled else text

    def message(self, message: Message) -> Message:
        return replace(
            message,
            content=self.text(message.content),
            reasoning=self._optional(message.reasoning),
            tool_calls=tuple(
                ToolCall(self.text(call.id), self.text(call.name), self.text(call.arguments))
                for call in message.tool_calls
            ),
            tool_call_id=self._optional(message.tool_call_id),
            name=self._optional(message.name),
        )

    def _optional(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)

    def tool(self, tool: Tool) -> Tool:
        return replace(
            tool,
            name=self.text(tool.name),
            description=self.text(tool.description),
            parameters=self.data(tool.parameters),
        )

    def data(self, value: Any) -> Any:
        """The same JSON value with all its strings guarded."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.data(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(inner) for inner in value]
        return value

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """(text, whether control tokens are read in it), in order."""
        for piece in self._split(text):
            if piece in self._words:
                yield self._words[piece], False
            elif piece:
                yield piece, True

    def restored(self, text: str) -> str:
        return "".join(self._words.get(piece, piece) for piece in self._split(text))

    def _split(self, text: str) -> Sequence[str]:
        if not self._words:
            return [text]
        return re.split(f"({self._nonce}x\\d+x)", text)

    def _word(self, match: re.Match[str]) -> str:
        text = match[0]
        word = self._of_text.get(text)
        if word is None:
            word = self._of_text[text] = self.new_word()
            self._words[word] = text
        return word
