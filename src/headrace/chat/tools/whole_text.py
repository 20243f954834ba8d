"""Arguments without halves of surrogate pairs, which models write and UTF-8 cannot hold.

A half becomes U+FFFD, raw or as a JSON escape; what is delivered does not depend on the pieces.
"""

from __future__ import annotations

import re

_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPES = re.compile(rf"{_HIGH}{_LOW}|({_HIGH}|{_LOW})|\\.", re.DOTALL)
# At the end of a text: what goes on to be an escape, or a pair of them.
_OPEN = re.compile(rf"(?<!\\)(?:\\\\)*((?:{_HIGH})?(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?)\Z")


def whole_text(text: str) -> str:
    """`text` with each raw half of a pair made U+FFFD; two that fit become their character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class WholeText:
    """The JSON text of one call's arguments as it comes; an escape is held until it is whole."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + whole_text(text)
        self._held = ""
        if "\\" not in text:
            return text
        if (found := _OPEN.search(text)) is not None:
            text, self._held = text[: found.start(1)], found[1]
        return _ESCAPES.sub(_whole, text)

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return _ESCAPES.sub(_whole, held)


def _whole(escape: re.Match[str]) -> str:
    return escape[0] if escape[1] is None else r"\ufffd"
