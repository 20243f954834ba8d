"""Calls as `call:NAME{key:value,...}` with strings between `<|"|>` marks, delivered as JSON."""

from __future__ import annotations

import json
import re

from headrace.chat.marks import Mark
from headrace.chat.stops import held_back

QUOTE = '<|"|>'
_HEAD = "call:"
_NAME = re.compile(r"[^\s{}<>\[\]]{1,128}")
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|true|false|null")
_MAX_DEPTH = 200
_MAX_WORD = 512
_CLOSING = {"{": "}", "[": "]"}


class GemmaCall:
    """One call. It is certain once its name and the opening brace were read."""

    ended = False
    left = ""
    more: tuple[tuple[str, str], ...] = ()

    def __init__(self) -> None:
        self.name: str | None = None
        self.failed = False
        self._rest = ""
        self._phase = "head"  # head, key, value, string, key_string, colon, next, over
        self._stack: list[str] = []
        self._first = True  # nothing in this object or list yet
        self._out: list[str] = []

    def closes(self, mark: Mark) -> bool:
        return self._phase not in ("string", "key_string")

    def take(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def feed(self, text: str) -> None:
        self._rest += text
        while not self.failed and self._phase != "over" and self._step():
            pass

    def end(self, *, cut: bool) -> None:
        self.failed = self.name is None

    def _step(self) -> bool:
        """One advance over `_rest`; False when more text is needed."""
        if self._phase in ("string", "key_string"):
            return self._string()
        self._rest = self._rest.lstrip()
        if not self._rest:
            return False
        match self._phase:
            case "head":
                return self._head()
            case "key":
                return self._key()
            case "colon":
                return self._sign(":", "value", ": ")
            case "value":
                return self._value()
        return self._next()

    def _head(self) -> bool:
        head, brace, rest = self._rest.partition("{")
        if not brace:
            self.failed = len(head) > _MAX_WORD
            return False
        name = head.removeprefix(_HEAD).strip()
        if not head.startswith(_HEAD) or _NAME.fullmatch(name) is None:
            self.failed = True
            return False
        self.name = name
        self._rest = "{" + rest
        return self._open("{")

    def _open(self, sign: str) -> bool:
        if len(self._stack) >= _MAX_DEPTH:
            return self._break()
        self._rest = self._rest[1:]
        self._stack.append(sign)
        self._out.append(sign)
        self._first, self._phase = True, "key" if sign == "{" else "value"
        return True

    def _close(self) -> bool:
        self._out.append(_CLOSING[self._stack.pop()])
        self._rest = self._rest[1:]
        self._first, self._phase = False, "next" if self._stack else "over"
        return True

    def _break(self) -> bool:
        """The arguments cannot be read on: they stay open, and the client sees that."""
        self._phase = "over"
        return False

    def _comma(self) -> None:
        if not self._first:
            self._out.append(", ")
        self._first = False

    def _key(self) -> bool:
        if self._rest[0] == "}":
            return self._close()
        if QUOTE.startswith(self._rest[: len(QUOTE)]):
            return self._quote("key_string")
        key, colon, rest = self._rest.partition(":")
        if not colon:
            return self._break() if len(key) > _MAX_WORD else False
        self._comma()
        self._out.append(json.dumps(key.strip(), ensure_ascii=False) + ": ")
        self._rest, self._phase = rest, "value"
        return True

    def _quote(self, phase: str) -> bool:
        if len(self._rest) < len(QUOTE):
            return False
        if phase == "key_string" or self._stack[-1] == "[":
            self._comma()
        self._out.append('"')
        self._rest, self._phase = self._rest[len(QUOTE) :], phase
        return True

    def _string(self) -> bool:
        text, mark, rest = self._rest.partition(QUOTE)
        if not mark:
            keep = held_back(text, (QUOTE,))
            text, rest = text[: len(text) - keep], text[len(text) - keep :]
        self._out.append(json.dumps(text, ensure_ascii=False)[1:-1])
        self._rest = rest
        if not mark:
            return False
        self._out.append('"')
        self._phase = "colon" if self._phase == "key_string" else "next"
        return True

    def _sign(self, sign: str, phase: str, said: str) -> bool:
        if self._rest[0] != sign:
            return self._break()
        self._rest, self._phase = self._rest[1:], phase
        self._out.append(said)
        return True

    def _value(self) -> bool:
        sign, in_list = self._rest[0], self._stack[-1] == "["
        if sign == "]" and in_list:
            return self._close()
        if QUOTE.startswith(self._rest[: len(QUOTE)]):
            return self._quote("string")
        if sign in "{[":
            if in_list:
                self._comma()
            return self._open(sign)
        end = re.search(r"[,}\]]", self._rest)
        if end is None:
            return self._break() if len(self._rest) > _MAX_WORD else False
        word = self._rest[: end.start()].strip()
        if in_list:
            self._comma()
        plain = _SCALAR.fullmatch(word) is not None
        self._out.append(word if plain else json.dumps(word, ensure_ascii=False))
        self._rest, self._phase = self._rest[end.start() :], "next"
        return True

    def _next(self) -> bool:
        if self._rest[0] == _CLOSING[self._stack[-1]]:
            return self._close()
        if self._rest[0] != ",":
            return self._break()
        self._rest = self._rest[1:]
        self._phase = "key" if self._stack[-1] == "{" else "value"
        return True
