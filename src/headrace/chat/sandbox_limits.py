"""How large a text one expression of a template may make; checked before it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter

MAX_TEXT = 1 << 26  # characters of one text
MAX_SEQUENCE = 1 << 20  # items or characters that `range`, `*` and padding may make
# A width of six digits, or one that is a value itself.
_WIDE = re.compile(r"\d{6,}|%[^a-zA-Z%]*\*|\{[^{}]*\{")


def limited(size: int, limit: int = MAX_TEXT) -> None:
    if size > limit:
        raise SecurityError(f"a text or list of {size} items, at most {limit} are allowed")


def check_binop(operator: str, left: Any, right: Any) -> None:
    """Raises SecurityError where `left operator right` would be oversized."""
    if operator == "**" and not (abs(left) <= MAX_SEQUENCE and abs(right) <= 64):
        raise SecurityError("a power this large is not allowed")
    if operator == "%" and isinstance(left, str):
        check_form(left)
    if operator == "+" and isinstance(left, str | list | tuple):
        size = len(left) + (len(right) if isinstance(right, str | list | tuple) else 0)
        limited(size, MAX_TEXT if isinstance(left, str) else MAX_SEQUENCE)
    for one, times in ((left, right), (right, left)):
        if operator == "*" and isinstance(one, str | list | tuple):
            limited(len(one) * int(times), MAX_SEQUENCE)


def check_method(method: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """The same for calling a method of a string."""
    if not isinstance(method, BuiltinMethodType) or not isinstance(method.__self__, str):
        return
    text, given = method.__self__, [*args, *kwargs.values()]
    match method.__name__:
        case "replace" if len(given) >= 2:
            _check_replaced(text, str(given[0]), str(given[1]))
        case "join" if given and not isinstance(given[0], str):
            if isinstance(given[0], list | tuple):
                limited(_joined_size(text, given[0]))
        case "center" | "ljust" | "rjust" | "zfill" | "expandtabs":
            limited(max((n for n in given if isinstance(n, int)), default=0), MAX_SEQUENCE)


def concatenated(*parts: Any) -> str:
    """`a ~ b ~ ...`"""
    texts = [str(part) for part in parts]
    limited(sum(map(len, texts)))
    return "".join(texts)


def limited_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Those of the engine's own filters that can multiply a text, with limits."""
    center = filters["center"]

    def replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text = str(value)
        _check_replaced(text, str(old), str(new))
        return text.replace(str(old), str(new), -1 if count is None else count)

    def centered(value: Any, width: int = 80) -> Any:
        limited(width, MAX_SEQUENCE)
        return center(value, width)

    def formatted(value: Any, *args: Any, **kwargs: Any) -> str:
        check_form(str(value))
        return str(value) % (kwargs or args)

    def indent(
        value: Any,
        width: int | str = 4,
        first: bool = False,
        blank: bool = False,
    ) -> str:
        lead = width if isinstance(width, str) else " " * min(width, MAX_SEQUENCE)
        text = str(value)
        limited(len(text) + len(lead) * (text.count("\n") + 1))
        lines = text.split("\n")
        rest = [lead + line if line or blank else line for line in lines[1:]]
        return "\n".join([lead + lines[0] if first else lines[0], *rest])

    @pass_environment
    def join(env: Environment, value: Any, d: str = "", attribute: str | None = None) -> str:
        pick = make_attrgetter(env, attribute) if attribute is not None else None
        texts: list[str] = []
        size = 0
        for item in value:
            texts.append(str(pick(item) if pick is not None else item))
            size += len(texts[-1]) + len(d)
            limited(size)
        return d.join(texts)

    return {
        "join": join,
        "replace": replace,
        "center": centered,
        "format": formatted,
        "indent": indent,
    }


def _joined_size(separator: str, items: Iterable[Any]) -> int:
    return sum(len(item) + len(separator) for item in items if isinstance(item, str))


def _check_replaced(text: str, old: str, new: str) -> None:
    limited(len(text) + text.count(old) * max(0, len(new) - len(old)))


def check_form(form: str) -> None:
    """Raises SecurityError for a text to be formatted that may ask for any width."""
    if _WIDE.search(form):
        raise SecurityError("a width this large is not allowed")
