"""Anthropic's `tools` and `tool_choice` -> the neutral ones.

Tools that a client runs are offered; those that only a vendor's server runs are left out, as this
server has none of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.api.fields import Fields, shown
from headrace.api.openai import TOOL_NAME
from headrace.chat.conversation import tool_line
from headrace.chat.types import Tool, ToolChoice

SERVER_TOOLS = re.compile(r"(web_search|web_fetch|code_execution|mcp_toolset)(_\d{8})?")
SERVER_SEARCH = re.compile(r"tool_search_tool_(regex|bm25)(_\d{8})?")
CHOICES = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}


@dataclass(frozen=True, slots=True)
class Offered:
    """All tools of a request. Deferred ones are described where a result refers to them."""

    by_name: Mapping[str, Tool]

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self.by_name.values())

    def describe(self, name: str) -> str | None:
        """For a result's reference; None unless it is among the tools."""
        tool = self.by_name.get(name)
        return None if tool is None else tool_line(tool)

    def known(self, loaded: set[str]) -> tuple[Tool, ...]:
        """Those the model can know of."""
        return tuple(tool for tool in self.tools if not tool.deferred or tool.name in loaded)


def parse_tools(body: Fields) -> Offered:
    """Raises RequestError naming the tool's field that is wrong."""
    tools: dict[str, Tool] = {}
    searched_here = False
    for entry in body.children("tools") or []:
        kind = entry.text("type") or "custom"
        entry.harmless("cache_control", "eager_input_streaming", "allowed_callers")
        if SERVER_SEARCH.fullmatch(kind):
            searched_here = True
            continue
        if SERVER_TOOLS.fullmatch(kind):
            continue
        tool = _custom(entry) if kind == "custom" else _known(entry, kind)
        if tool.name in tools:
            raise entry.fault("name", f"{shown(tool.name)} is given twice", expected="unique names")
        tools[tool.name] = tool
        entry.done()
    if searched_here:
        # There is no search of ours by which the model could find them.
        tools = {name: replace(tool, deferred=False) for name, tool in tools.items()}
    return Offered(tools)


def _custom(entry: Fields) -> Tool:
    name = entry.required_text("name")
    if not TOOL_NAME.fullmatch(name):
        raise entry.fault(
            "name", f"found {shown(name)}", expected="1 to 128 letters, digits or _ - . : /"
        )
    schema = entry.mapping("input_schema")
    if schema is None:
        raise entry.fault("input_schema", "missing", expected="a JSON schema of type object")
    description = entry.text("description") or ""
    examples = entry.items("input_examples")
    if examples:
        lines = "\n".join(json.dumps(example, ensure_ascii=False) for example in examples)
        description = f"{description}\n\nExamples of its input:\n{lines}".strip()
    return Tool(
        name=name,
        description=description,
        parameters=schema,
        strict=entry.flag("strict") or False,
        deferred=entry.flag("defer_loading") or False,
    )


def _known(entry: Fields, kind: str) -> Tool:
    """A tool whose schema goes without saying: the client runs it, the service knows it."""
    for pattern, tool in KNOWN:
        if pattern.fullmatch(kind):
            deferred = entry.flag("defer_loading") or False
            entry.harmless("max_characters", "input_examples", "strict")
            return replace(tool, name=entry.text("name") or tool.name, deferred=deferred)
    raise entry.fault(
        "type",
        f"{shown(kind)} is not supported",
        expected="custom, bash_*, text_editor_* or memory_*",
        fix="give it as a custom tool with an input_schema",
    )


def parse_choice(body: Fields, tools: tuple[Tool, ...]) -> tuple[ToolChoice, bool]:
    """The choice, and whether several calls in one turn are allowed."""
    entry = body.child("tool_choice")
    if entry is None:
        return ToolChoice(), True
    kind = entry.choice("type", CHOICES)
    if kind is None:
        raise entry.fault("type", "missing", expected="one of " + ", ".join(CHOICES))
    parallel = not (entry.flag("disable_parallel_tool_use") or False)
    name = entry.text("name")
    if kind == "tool":
        if all(tool.name != name for tool in tools):
            raise entry.fault(
                "name",
                f"{shown(name)} is not among the tools",
                expected="one of " + (", ".join(tool.name for tool in tools) or "(none given)"),
            )
    elif name is not None:
        raise entry.fault("name", f"given with type {kind}", expected="type tool")
    if kind == "any" and not tools:
        raise entry.fault("type", "any, but there are no tools", expected="tools")
    entry.done()
    return ToolChoice(CHOICES[kind], name), parallel  # type: ignore[arg-type]


def _schema(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT, _WHOLE = {"type": "string"}, {"type": "integer"}
_RANGE = {"type": "array", "items": _WHOLE}
_EDITS: dict[str, Any] = {
    "path": _TEXT,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _WHOLE,
    "insert_text": _TEXT,
    "view_range": _RANGE,
}
KNOWN = (
    (
        re.compile(r"bash_\d{8}"),
        Tool(
            "bash",
            "Runs a command in a shell that keeps its state; restart begins with a new one.",
            _schema((), command=_TEXT, restart={"type": "boolean"}),
        ),
    ),
    (
        re.compile(r"text_editor_\d{8}"),
        Tool(
            "str_replace_based_edit_tool",
            "Views and edits files: view (a view_range of lines, or a folder), create, str_replace "
            "(old_str must be unique), insert (after insert_line).",
            _schema(
                ("command", "path"),
                command={"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
                **_EDITS,
            ),
        ),
    ),
    (
        re.compile(r"memory_\d{8}"),
        Tool(
            "memory",
            "Keeps notes in files below /memories that outlive this conversation: view, create, "
            "str_replace, insert, delete, rename (old_path to new_path).",
            _schema(
                ("command",),
                command={
                    "type": "string",
                    "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
                },
                old_path=_TEXT,
                new_path=_TEXT,
                **_EDITS,
            ),
        ),
    ),
)
