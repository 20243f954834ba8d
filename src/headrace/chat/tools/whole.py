"""Calls that are read when they are whole: rows of JSON objects, and Python calls."""

from __future__ import annotations

import ast
import json
from typing import Any

from headrace.chat.marks import Mark

MAX_CHARS = 1 << 18
_WORDS = {"true": True, "false": False, "null": None, "none": None}


class WholeCalls:
    """Keeps the text of all calls in one pair of delimiters, and reads it at the end."""

    ended = False
    left = ""

    def __init__(self) -> None:
        self.name: str | None = None
        self.failed = False
        self.more: tuple[tuple[str, str], ...] = ()
        self._text: list[str] = []
        self._size = 0
        self._arguments = ""

    def closes(self, mark: Mark) -> bool:
        return mark.certain or self.calls("".join(self._text)) is not None

    def take(self) -> str:
        text, self._arguments = self._arguments, ""
        return text

    def feed(self, text: str) -> None:
        self._text.append(text)
        self._size += len(text)
        self.failed = self._size > MAX_CHARS

    def end(self, *, cut: bool) -> None:
        found = self.calls("".join(self._text))
        self.failed = not found
        if found:
            (self.name, self._arguments), *more = found
            self.more = tuple(more)

    def calls(self, text: str) -> list[tuple[str, str]] | None:
        """(name, arguments) of each call in `text`; None if it is anything else."""
        raise NotImplementedError


class JsonCalls(WholeCalls):
    """`[{"name": ..., "arguments": {...}}, ...]`, or such objects one after the other."""

    def calls(self, text: str) -> list[tuple[str, str]] | None:
        decoder = json.JSONDecoder()
        found: list[tuple[str, str]] = []
        at = 0
        try:
            while text[at:].strip():
                at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,;"))
                value, at = decoder.raw_decode(text, at)
                for entry in value if isinstance(value, list) else [value]:
                    found.append(_json_call(entry))
        except (ValueError, TypeError, RecursionError):
            return None
        return found


class KeyedCalls(WholeCalls):
    """`[{"NAME": {...}}, ...]`: the one key of each object is the name."""

    def calls(self, text: str) -> list[tuple[str, str]] | None:
        try:
            return [_keyed_call(entry) for entry in json.loads(text)]
        except (ValueError, TypeError, RecursionError):
            return None


class PythonCalls(WholeCalls):
    """`[f(a=1), g(b="x")]`, or one such call without brackets; values are literals."""

    def calls(self, text: str) -> list[tuple[str, str]] | None:
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            items = tree.elts if isinstance(tree, ast.List) else [tree]
            return [_python_call(item) for item in items]
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None


def _json_call(entry: Any) -> tuple[str, str]:
    if not isinstance(entry, dict):
        raise ValueError("not a call")
    name = entry.get("name", entry.get("tool_name"))
    if not isinstance(name, str) or not name:
        raise ValueError("not a call")
    arguments = entry.get("arguments", entry.get("parameters"))
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    if arguments is not None and not isinstance(arguments, dict):
        raise ValueError("not an object of arguments")
    return name, json.dumps(arguments or {}, ensure_ascii=False, allow_nan=False)


def _keyed_call(entry: Any) -> tuple[str, str]:
    ((name, arguments),) = entry.items() if isinstance(entry, dict) else ((None, None),)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("not a call")
    return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _python_call(node: ast.expr) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call by keywords")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("not a keyword")
        arguments[keyword.arg] = _literal(keyword.value)
    return _dotted(node.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id):
            return id
        case ast.Attribute(value, attr):
            return f"{_dotted(value)}.{attr}"
    raise ValueError("not a name")


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Name(id) if id.lower() in _WORDS:
            return _WORDS[id.lower()]
        case ast.List(elts) | ast.Tuple(elts):
            return [_literal(item) for item in elts]
        case ast.Dict(keys, values):
            return {
                str(_literal(key)): _literal(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
    return ast.literal_eval(node)
