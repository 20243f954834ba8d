"""Strict reading of a JSON request: each field is taken by name and type, the rest is refused.

A fault is a RequestError whose `field` is the full path of the culprit: `messages[0].content`.
JSON null counts as absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Self

from headrace.errors import RequestError


def parse_json(body: bytes) -> Any:
    """The body as JSON, with valid Unicode and finite numbers only. Raises RequestError."""

    def refuse(name: str) -> NoReturn:
        raise RequestError(f"the body holds {name}", expected="finite numbers only")

    try:
        value = json.loads(body.decode("utf-8"), parse_constant=refuse)
        if b"\\u" in body:  # an escaped lone surrogate is not text
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not UTF-8 (byte {error.start})", expected="JSON encoded as UTF-8"
        ) from error
    except UnicodeEncodeError as error:
        raise RequestError(
            "a string holds half a surrogate pair", expected="whole Unicode characters"
        ) from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply", expected="plain JSON") from error
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}", expected="one JSON object") from error
    return value


# Objects in one array: a million of them take seconds and 250 MB before the first is looked at.
MAX_OBJECTS = 1 << 17


class Fields:
    """One JSON object, read field by field."""

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise RequestError(
                f"{path or 'the body'} is {_kind(value)}", field=path or None, expected="an object"
            )
        self._left = dict(value)
        self._path = path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str) -> Any:
        """The raw value, None when absent or null."""
        return self._left.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether it is there, not null, and not yet taken."""
        return self._left.get(name) is not None

    def fault(self, name: str, found: str, *, expected: str = "", fix: str = "") -> RequestError:
        """A RequestError about this field, to raise."""
        path = self.path(name)
        return RequestError(f"{path}: {found}", field=path, expected=expected, fix=fix)

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fault(
                name, f"found {shown(value)}", expected=f"a whole number from {low} to {high}"
            )
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.take(name)
        if value is None:
            return None
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or not low <= value <= high:
            raise self.fault(
                name, f"found {shown(value)}", expected=f"a number from {low:g} to {high:g}"
            )
        return float(value)

    def flag(self, name: str) -> bool | None:
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.fault(name, f"found {shown(value)}", expected="true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise self.fault(name, f"found {_kind(value)}", expected="a string")
        return value

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise self.fault(name, "missing", expected="a string")
        return value

    def choice(self, name: str, allowed: Iterable[str]) -> str | None:
        value = self.text(name)
        names = tuple(allowed)
        if value is not None and value not in names:
            raise self.fault(name, f"found {shown(value)}", expected="one of " + ", ".join(names))
        return value

    def items(self, name: str) -> list[Any] | None:
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            raise self.fault(name, f"found {_kind(value)}", expected="an array")
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self.take(name)
        if value is not None and not isinstance(value, dict):
            raise self.fault(name, f"found {_kind(value)}", expected="an object")
        return value

    def child(self, name: str) -> Fields | None:
        value = self.take(name)
        return None if value is None else Fields(value, self.path(name))

    def children(self, name: str) -> list[Fields] | None:
        values = self.items(name)
        return None if values is None else objects(values, self.path(name))

    def harmless(self, *names: str) -> Self:
        """Drops fields that carry no wish about the answer."""
        for name in names:
            self._left.pop(name, None)
        return self

    def refuse(self, name: str, why: str, *, unless: Callable[[Any], bool] | None = None) -> None:
        """Raises when the field is present, unless its value is one that changes nothing."""
        value = self.take(name)
        if value is not None and (unless is None or not unless(value)):
            raise self.fault(name, f"{shown(value)} is not supported", fix=why)

    def done(self) -> None:
        """400 on the first field that nobody took."""
        for name, value in self._left.items():
            if value is not None:
                raise self.fault(
                    name, "this field is not supported", fix="leave it out or check its spelling"
                )


def objects(values: list[Any], path: str) -> list[Fields]:
    """The objects of an array that stands at `path`."""
    if len(values) > MAX_OBJECTS:
        raise RequestError(
            f"{path}: {len(values)} of them", field=path, expected=f"at most {MAX_OBJECTS}"
        )
    return [Fields(value, f"{path}[{i}]") for i, value in enumerate(values)]


def shown(value: object) -> str:
    """A value for a message, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    names |= {list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)
