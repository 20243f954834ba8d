"""Calls as a name, a separator and one JSON object; the object is passed on as it comes."""

from __future__ import annotations

from collections.abc import Callable

from headrace.chat.marks import Mark
from headrace.chat.tools.json_scan import JsonScanner

_MAX_HEAD = 512


class NamedJsonCall:
    """`name_of` reads the name from what stands before a separator, None if that is none.

    `alone` says that no mark closes a call: it is over with its object.
    """

    more: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        separators: tuple[str, ...],
        name_of: Callable[[str], str | None],
        *,
        alone: bool = False,
    ) -> None:
        self.name: str | None = None
        self.failed = False
        self.left = ""
        self._separators = separators
        self._name_of = name_of
        self._alone = alone
        self._head = ""
        self._found: str | None = None
        self._scanner = JsonScanner()
        self._broken = False

    @property
    def ended(self) -> bool:
        return self._alone and self._scanner.done

    def closes(self, mark: Mark) -> bool:
        return not self._scanner.in_string

    def take(self) -> str:
        return self._scanner.take()

    def feed(self, text: str) -> None:
        if self._found is None:
            self._head += text
            text = self._headed()
        if self._found is None or self.failed:
            return
        if self.name is None:
            text = text.lstrip()
            if not text:
                return
            if text[0] != "{":
                self.failed = True
                return
            self.name = self._found
        if self._broken:
            self._scanner.add(text)
        elif self._scanner.done:
            self.left += text if self._alone else ""
        else:
            at = self._scanner.feed(text)
            if self._scanner.failed:
                # What was delivered cannot be taken back: the client sees what the model wrote.
                self._broken = True
                self._scanner.add(text[at:])
            elif self._alone:
                self.left += text[at:]

    def end(self, *, cut: bool) -> None:
        self.failed = self.name is None

    def _headed(self) -> str:
        """The text behind the separator, once it came."""
        places = [
            (at, -len(mark), mark)
            for mark in self._separators
            if (at := self._head.find(mark)) >= 0
        ]
        if not places:
            self.failed = len(self._head) > _MAX_HEAD
            return ""
        at, _, mark = min(places)
        self._found = self._name_of(self._head[:at])
        self.failed = self._found is None
        return self._head[at + len(mark) :]
