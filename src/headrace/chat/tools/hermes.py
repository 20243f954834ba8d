"""Calls as one JSON object, `{"name": ..., "arguments": {...}}`, with the keys in any order."""

from __future__ import annotations

import json

from headrace.chat.marks import Mark
from headrace.chat.tools.json_scan import JsonScanner

_ARGUMENT_KEYS = ("arguments", "parameters")
_BLANK = " \t\r\n"


class HermesCall:
    """The object of one call. The arguments' text is passed on as the model wrote it.

    Once arguments have been delivered, what follows cannot be taken back: if it is not JSON it is
    passed on as it is, and the client sees arguments that do not parse, as the model wrote them.
    `alone` says that no mark closes a call: it is over with its object.
    """

    more: tuple[tuple[str, str], ...] = ()

    def __init__(self, *, alone: bool = False) -> None:
        self.name: str | None = None
        self.failed = False
        self.left = ""
        self._alone = alone
        self._phase = "open"  # open, key, colon, value, next, end, broken
        self._key = ""
        self._scanner = JsonScanner()
        self._streaming = False  # inside an arguments object
        self._fresh = False  # no character of the current value was read yet
        self._out: list[str] = []  # the arguments' text that was not yet taken
        self._any_arguments = False
        self._found_name: str | None = None

    @property
    def ended(self) -> bool:
        return self._alone and self._phase == "end"

    def closes(self, mark: Mark) -> bool:
        return not self._scanner.in_string

    def take(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text) and not self.failed and self._phase != "end":
            if self._phase == "broken":
                self._add(text[at:])
                return
            if self._phase in ("key", "value"):
                at = self._scan(text, at)
            elif text[at] in _BLANK:
                at += 1
            else:
                self._sign(text[at])
                at += 1
        if self.ended:
            self.left += text[at:]

    def end(self, *, cut: bool) -> None:
        if self._phase == "value" and not self._streaming:
            self._scanner.end()
            if self._scanner.done:
                self._value_done()
        if self._phase == "next" and not cut and self.name is None and self._found_name is not None:
            self._settle(final=True)
        if self.name is None:
            self.failed = True

    def _sign(self, char: str) -> None:
        match self._phase, char:
            case "open", "{":
                self._begin("key")
            case "colon", ":":
                self._begin("value")
            case "next", ",":
                self._begin("key")
            case "next", "}":
                self._phase = "end"
                self._settle(final=True)
            case _:
                self._fail(char)

    def _begin(self, phase: str) -> None:
        self._phase, self._scanner, self._fresh = phase, JsonScanner(), True

    def _scan(self, text: str, at: int) -> int:
        if self._phase == "key":
            while at < len(text) and text[at] in _BLANK and not self._scanner.in_string:
                at += 1
            if at == len(text):
                return at
            if not self._scanner.in_string and text[at] != '"':
                if text[at] == "}" and not self._key:
                    self._phase = "end"
                    self._settle(final=True)
                else:
                    self._fail(text[at])
                return at + 1
        begin = at
        if self._fresh and self._phase == "value" and self._key in _ARGUMENT_KEYS:
            at = self._maybe_stream(text, at)
        at = self._scanner.feed(text, at)
        if self._streaming:
            self._add(self._scanner.take())
        if self._scanner.failed:
            self._fail(text[at:])
            return len(text)
        if self._scanner.done:
            if self._phase == "key":
                self._key, self._phase = _decoded(self._scanner.take()), "colon"
            else:
                self._value_done()
        assert at > begin or self._scanner.done
        return at

    def _maybe_stream(self, text: str, at: int) -> int:
        """Blank space before the arguments is skipped; an object is passed on as it comes."""
        while at < len(text) and text[at] in _BLANK:
            at += 1
        if at < len(text):
            self._fresh = False
            if text[at] == "{" and not self._any_arguments:
                self._streaming = self._any_arguments = True
                self._settle(final=False)
        return at

    def _value_done(self) -> None:
        if self._streaming:
            self._streaming = False
        elif self._key == "name":
            name = _decoded(self._scanner.take())
            if not name:
                self._fail("")
                return
            if self._found_name is None:
                self._found_name = name
        elif self._key in _ARGUMENT_KEYS and not self._any_arguments:
            text = _object_text(self._scanner.take())
            if text is None:
                self._fail("")
                return
            self._any_arguments = True
            self._add(text)
        self._phase = "next"
        self._settle(final=False)

    def _settle(self, *, final: bool) -> None:
        """The call is certain once it has a name and its arguments have begun, or it is over."""
        if self.name is not None or self._found_name is None:
            if final and self._found_name is None:
                self.failed = True
            return
        if final and not self._any_arguments:
            self._add("{}")
            self._any_arguments = True
        if self._any_arguments:
            self.name = self._found_name

    def _add(self, text: str) -> None:
        self._out.append(text)

    def _fail(self, rest: str) -> None:
        if self.name is None:
            self.failed = True
        elif self._streaming:
            self._phase, self._scanner = "broken", JsonScanner()
            self._add(rest)
        else:
            self._phase = "end"
            self.left = rest


def _decoded(text: str) -> str:
    value = json.loads(text)
    return value if isinstance(value, str) else ""


def _object_text(text: str) -> str | None:
    """The arguments' JSON where they are not an object: an object's text in a string, or null."""
    try:
        value = json.loads(text)
    except ValueError:  # a number of thousands of digits
        return None
    if value is None:
        return "{}"
    if isinstance(value, str):
        try:
            inner = json.loads(value, parse_constant=_refuse) if value.strip() else {}
        except (ValueError, RecursionError):
            return None
        if isinstance(inner, dict):
            return value.strip() or "{}"
    return None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
