"""A limit on thinking: when it is used up, only the tokens that end a thinking are allowed.

Fits `engine.request.Constraint`, and carries the answer's grammar where there is one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.chat.detokenizer import Detokenizer
from headrace.chat.grammar import GrammarConstraint
from headrace.chat.style import Style
from headrace.chat.tokenizer import Tokenizer


class ThinkingBudget:
    """One answer's. `budget` counts the tokens of its thinking, over all thinkings in it.

    For use by one thread. Raises RequestError from `mask` and `accept` as the grammar does.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        style: Style,
        budget: int,
        *,
        in_reasoning: bool,
        tools: bool,
        grammar: GrammarConstraint | None,
    ) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._grammar = grammar
        self._left = budget
        self._marks = _Marks(tokenizer, style, in_reasoning=in_reasoning)
        self._closing = closing_ids(tokenizer, style, tools=tools)
        # Who thinks on instead of calling has to answer.
        self._last = closing_ids(tokenizer, style, tools=False)
        self._forced: list[int] = []
        self._free = _bits(range(self._vocab_size), self._vocab_size)

    def mask(self) -> NDArray[np.int32]:
        """int32 [ceil(vocab_size / 32)], bit i % 32 of word i // 32 for token i."""
        allowed = self._free if self._grammar is None else self._grammar.mask()
        if self._left <= 0 and self._marks.thinking and not self._forced:
            # In the middle of a character a grammar lets nothing end.
            first = self._closing[0]
            if allowed[first // 32] >> (first % 32) & 1:
                self._forced, self._closing = list(self._closing), self._last
        return _bits([self._forced[0]], self._vocab_size) if self._forced else allowed

    def accept(self, token: int) -> None:
        """Advance by one token that `mask` allowed."""
        if self._grammar is not None:
            self._grammar.accept(token)
        self._marks.feed(token)
        if self._forced:
            del self._forced[0]
        elif self._marks.thinking:
            self._left -= 1

    @property
    def done(self) -> bool:
        return self._grammar is not None and self._grammar.done


class _Marks:
    """Whether the tokens so far stand inside a thinking."""

    def __init__(self, tokenizer: Tokenizer, style: Style, *, in_reasoning: bool) -> None:
        self.thinking = in_reasoning
        self._channels = style.channels
        self._span = style.think
        self._text = Detokenizer(tokenizer, after_text=True)
        self._tail = ""
        self._header: str | None = ""  # of channels; None = inside a body

    def feed(self, token: int) -> None:
        text = self._text.feed(token)
        if self._channels is not None:
            self._channel(token, text)
        elif self._span is not None:
            self._tail = (self._tail + text)[-64:]
            opened = self._met(token, self._span.open.token, self._span.open.text)
            if opened or self._met(token, self._span.close.token, self._span.close.text):
                self.thinking, self._tail = opened, ""

    def _met(self, token: int, mark: int | None, text: str) -> bool:
        return token == mark if mark is not None else text in self._tail

    def _channel(self, token: int, text: str) -> None:
        channels = self._channels
        assert channels is not None
        if token == channels.message and self._header is not None:
            self.thinking = "analysis" in self._header.split()
            self._header = None
        elif token in (channels.start, channels.end, channels.channel):
            self.thinking = False
            self._header = (self._header or "") + " " if token == channels.channel else ""
        elif self._header is not None:
            self._header += text


def closing_ids(tokenizer: Tokenizer, style: Style, *, tools: bool) -> tuple[int, ...]:
    """The tokens that end a thinking; empty for a family without any."""
    channels = style.channels
    if channels is not None:
        end = [channels.end, channels.start, *tokenizer.encode("assistant", special=False)]
        if not tools:
            end += [channels.channel, *tokenizer.encode("final", special=False), channels.message]
        return tuple(end)
    if style.think is None:
        return ()
    close = style.think.close
    if close.token is not None:
        return (close.token,)
    return tuple(tokenizer.encode(close.text, special=True))


def _bits(tokens: range | list[int], vocab_size: int) -> NDArray[np.int32]:
    bits = np.zeros((vocab_size + 31) // 32 * 32, dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
