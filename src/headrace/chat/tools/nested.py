"""Calls as nested tags, each behind a mark: an object's keys are tags, a list's entries `<item>`.

Values are delivered when the call is whole, by the tool's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from headrace.chat.marks import Mark
from headrace.chat.tools.schema import resolved, schema_types, to_json
from headrace.chat.types import Tool

NS = "]<]minimax[>["
_HEAD = re.compile(r'([^"<>\s]{1,128})">')
_TAG = re.compile(re.escape(NS) + r"<(/?)([^<>\s]{1,256})>")
_MAX_CHARS = 1 << 20
_MAX_DEPTH = 64
_MAX_HEAD = 512

Node = list[tuple[str, Any]]


class NestedCall:
    """One call; it is certain once its name was read."""

    ended = False
    left = ""
    more: tuple[tuple[str, str], ...] = ()

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.name: str | None = None
        self.failed = False
        self._tools = tools
        self._text: list[str] = []
        self._size = 0
        self._arguments = ""

    def closes(self, mark: Mark) -> bool:
        return True

    def take(self) -> str:
        text, self._arguments = self._arguments, ""
        return text

    def feed(self, text: str) -> None:
        self._text.append(text)
        self._size += len(text)
        if self.name is None:
            head = "".join(self._text)
            found = _HEAD.match(head)
            if found is not None:
                self.name = found[1]
                self._text = [head[found.end() :]]
            elif len(head) > _MAX_HEAD or '"' in head[:-1]:
                self.failed = True
        elif self._size > _MAX_CHARS:
            self._text.clear()

    def end(self, *, cut: bool) -> None:
        if self.name is None:
            self.failed = True
            return
        tool = self._tools.get(self.name)
        schema = tool.parameters if tool is not None else {}
        tree = _tree("".join(self._text))
        self._arguments = _object(tree, schema, schema)


def _tree(text: str) -> Node:
    """(tag, text or entries) in order; what does not nest is left where it opened."""
    root: Node = []
    stack: list[tuple[str, Node, list[str]]] = [("", root, [])]
    at = 0
    for found in _TAG.finditer(text):
        stack[-1][2].append(text[at : found.start()])
        at = found.end()
        closing, name = found[1] == "/", found[2]
        if not closing and len(stack) < _MAX_DEPTH:
            stack.append((name, [], []))
        elif closing and len(stack) > 1 and stack[-1][0] == name:
            tag, entries, texts = stack.pop()
            stack[-1][1].append((tag, entries or "".join(texts)))
    while len(stack) > 1:
        tag, entries, texts = stack.pop()
        stack[-1][1].append((tag, entries or "".join(texts)))
    return root


def _inner(schema: Any, key: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = resolved(schema, root).get("properties")
    return resolved(properties.get(key), root) if isinstance(properties, Mapping) else {}


def _value(node: str | Node, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    types = schema_types(schema, root)
    if isinstance(node, str):
        if not node.strip() and "string" not in types:
            return "[]" if "array" in types else "{}" if "object" in types else '""'
        return to_json(node, types)
    if all(tag == "item" for tag, _ in node) and ("array" in types or "object" not in types):
        items = resolved(schema.get("items"), root)
        return "[" + ", ".join(_value(inner, items, root) for _, inner in node) + "]"
    return _object(node, schema, root)


def _object(node: Node, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    entries = (
        f"{json.dumps(key, ensure_ascii=False)}: {_value(inner, _inner(schema, key, root), root)}"
        for key, inner in dict(node).items()  # of a key given twice the last
    )
    return "{" + ", ".join(entries) + "}"
