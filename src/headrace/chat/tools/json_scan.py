"""Reads one JSON value as its text comes, and says where it ends."""

from __future__ import annotations

import json
import re

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_BLANK = re.compile(r"[ \t\r\n]+")
_SCALAR_TEXT = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|true|false|null")
_HEX = frozenset("0123456789abcdefABCDEF")
_MAX_DEPTH = 200
_CLOSING = {"{": "}", "[": "]"}


class JsonScanner:
    """One value. `done` and `failed` end it; `take` gives its text so far.

    The text is kept as written, except that bare control characters in strings, which models do
    write, are escaped so that it is JSON.
    """

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self.in_string = False
        self._stack: list[str] = []
        # What may come next: value, item (a value or `]`), key (or `}`), name (a key), colon, next.
        self._expect = "value"
        self._escape = 0  # 1: right after a backslash; 2 to 5: hex digits of \u still to come
        self._scalar = ""
        self._out: list[str] = []

    def take(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def add(self, text: str) -> None:
        """Text that is passed on unread."""
        self._out.append(text)

    def feed(self, text: str, at: int = 0) -> int:
        """Consume `text` from `at`; the index of the first character that was not part of it."""
        while at < len(text) and not (self.done or self.failed):
            if self.in_string:
                at = self._string(text, at)
            elif match := _SCALAR_TEXT.match(text, at):
                self._scalar_part(match[0])
                at = match.end()
            elif self._scalar:
                self._end_scalar()
            elif match := _BLANK.match(text, at):
                self._out.append(match[0])
                at = match.end()
            else:
                at = self._sign(text[at], at)
        return at

    def end(self) -> None:
        """No more text: a number or a word at the top is complete now."""
        if self._scalar and not self.failed:
            self._end_scalar()

    def _scalar_part(self, text: str) -> None:
        if not self._scalar and self._expect not in ("value", "item"):
            self.failed = True
            return
        self._scalar += text
        self._out.append(text)

    def _end_scalar(self) -> None:
        if _SCALAR.fullmatch(self._scalar) is None:
            self.failed = True
        self._scalar = ""
        self._value_ended()

    def _value_ended(self) -> None:
        if self._stack:
            self._expect = "next"
        elif not self.failed:
            self.done = True

    def _sign(self, char: str, at: int) -> int:
        expect = self._expect
        if char == '"' and expect in ("value", "item", "key", "name"):
            self.in_string = True
        elif char in "{[" and expect in ("value", "item") and len(self._stack) < _MAX_DEPTH:
            self._stack.append(char)
            self._expect = "key" if char == "{" else "item"
        elif char == ":" and expect == "colon":
            self._expect = "value"
        elif char == "," and expect == "next":
            self._expect = "name" if self._stack[-1] == "{" else "value"
        elif (
            char in "}]"
            and self._stack
            and _CLOSING[self._stack[-1]] == char
            and expect in ("next", "key", "item")
        ):
            self._stack.pop()
            self._value_ended()
        else:
            self.failed = True
            return at
        self._out.append(char)
        return at + 1

    def _string(self, text: str, at: int) -> int:
        char = text[at]
        if self._escape:
            return self._escaped(char, at)
        if match := _PLAIN.match(text, at):
            self._out.append(match[0])
            return match.end()
        if char == "\\":
            self._escape = 1
        elif char == '"':
            self.in_string = False
            if self._expect in ("key", "name"):
                self._expect = "colon"
            else:
                self._value_ended()
        else:
            char = json.dumps(char)[1:-1]
        self._out.append(char)
        return at + 1

    def _escaped(self, char: str, at: int) -> int:
        if self._escape == 1 and char == "u":
            self._escape = 5
        elif self._escape == 1 and char in '"\\/bfnrt':
            self._escape = 0
        elif self._escape > 1 and char in _HEX:
            self._escape = self._escape - 1 if self._escape > 2 else 0
        else:
            self.failed = True
            return at
        self._out.append(char)
        return at + 1
