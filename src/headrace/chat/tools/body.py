"""What every call syntax provides: a reader of one call, fed with text as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.chat.marks import Mark
from headrace.chat.types import Tool


class CallBody(Protocol):
    """What stands between a call's delimiters, read as it comes.

    `name` is set once the call is certain to be one. `failed` is only ever set before that.
    `ended` says that the call is over although no mark closed it; `left` is the text behind it.
    `more` are further calls in the same delimiters, as (name, arguments), known at the end.
    """

    name: str | None
    failed: bool

    @property
    def ended(self) -> bool: ...
    @property
    def left(self) -> str: ...
    @property
    def more(self) -> tuple[tuple[str, str], ...]: ...

    def feed(self, text: str) -> None: ...

    def closes(self, mark: Mark) -> bool:
        """False if `mark` stands inside a value and is part of it."""
        ...

    def end(self, *, cut: bool) -> None:
        """No more text comes: the closing mark was read or, if `cut`, the answer is over."""
        ...

    def take(self) -> str:
        """The arguments' JSON text since the last `take`; only meaningful once `name` is set."""
        ...


Bodies = Callable[[Mapping[str, Tool], str], CallBody | None]


@dataclass(frozen=True, slots=True)
class Syntax:
    """One family's way of writing calls.

    A template that shows all of `signs` writes calls so. `close` is empty where a call's own text
    tells its end. `wraps` may stand around calls and say nothing more. `spelled` are tokens that
    belong to the text of a call. `bare` is a character with which an answer may begin that is a
    call without any mark. `body` makes the reader from the call's first character.
    """

    name: str
    signs: tuple[str, ...]
    open: str
    close: str
    body: Bodies
    wraps: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()
    bare: str = ""

    @property
    def marks(self) -> tuple[str, str]:
        return self.open, self.close
