"""Grammar rules for calls: the family's syntax around each tool's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.chat.schema_text import checked_schema
from headrace.chat.style import Channels, Delimiter, Style
from headrace.chat.tools.schema import resolved, schema_types
from headrace.chat.types import ChatRequest, Tool
from headrace.errors import RequestError

# Blank space in JSON is bounded: a weak model would else write nothing but blanks for ever.
JSON_BLANK = r" {1,4}|\n[ \t]{0,60}"
MAX_CALLS = 32  # of one turn under a grammar: a weak model would else never stop calling
_END = "\n</parameter>\n"


@dataclass
class CallRules:
    """Rules whose alternatives `call` are the offered tools.

    `forced`: nothing but calls; else free text may come before them or instead of them.
    `several`: more than one call in a turn.
    """

    forced: bool
    several: bool
    marks_are_tokens: bool
    channels: Channels | None = None
    lines: list[str] = field(default_factory=list)

    def start(self, *, format_given: bool) -> str:
        """The right side of the rule for a turn; a given format takes the place of free text."""
        more = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if self.several else ""
        if self.forced or format_given:
            return f"call{more}"
        if self.channels is not None:
            return f"call | {final(self.channels, 'FREE')}"
        if self.marks_are_tokens:
            return f"FREE (call{more})?"
        return f"FREE | first_call{more}"


def call_rules(request: ChatRequest, style: Style) -> CallRules | None:
    """The rules for the calls `request` allows, None where nothing about calls is constrained.

    That is: a call is forced, a tool is strict, only some tools are allowed, calls must be single,
    or a format is given.
    Raises RequestError for an unknown tool and for a family whose syntax is not known.
    """
    choice = request.tool_choice
    if choice.mode == "none" or (not request.tools and choice.mode == "auto"):
        return None
    forced = choice.mode in ("required", "named")
    strict = bool(choice.allowed) or any(tool.strict for tool in request.tools)
    if not (forced or strict) and request.parallel_tool_calls and request.format.kind == "text":
        return None
    if not request.tools:
        raise RequestError("a call is asked for but no tool is given", field="tool_choice")
    if style.syntax not in ("hermes", "qwen_xml", "harmony"):
        if not (forced or strict):
            return None
        raise RequestError(
            "this model's way of writing calls is not known, so calls cannot be forced",
            field="tool_choice" if forced else "tools",
            fix="use tool_choice auto without strict tools",
        )
    named = [
        (i, tool)
        for i, tool in enumerate(request.tools)
        if (choice.mode != "named" or tool.name == choice.name)
        and (not choice.allowed or tool.name in choice.allowed)
    ]
    if not named:
        raise RequestError(
            f"tool_choice names {choice.name!r}",
            field="tool_choice",
            expected="one of " + ", ".join(tool.name for tool in request.tools),
        )
    several = request.parallel_tool_calls and choice.mode != "named"
    if style.channels is not None:
        # One call ends the turn in this family.
        rules = CallRules(forced, several=False, marks_are_tokens=True, channels=style.channels)
        _add_channel_calls(rules.lines, named, style.channels)
        return rules
    rules = CallRules(forced, several, marks_are_tokens=style.call.open.token is not None)
    _add_calls(rules, named, style)
    return rules


def final(channels: Channels, rule: str) -> str:
    """`rule` as the text of the answer."""
    return f'<[{channels.channel}]> "final" <[{channels.message}]> {rule}'


def _add_channel_calls(lines: list[str], named: list[tuple[int, Tool]], channels: Channels) -> None:
    for i, tool in named:
        guidance = {"whitespace_pattern": JSON_BLANK, "lenient": not tool.strict}
        where = f"tools[{i}].function.parameters"
        lines.append(
            f"args_{i}: %json {checked_schema(_object_schema(tool.parameters), where, guidance)}"
        )
        lines.append(
            f"body_{i}: {_text(f'commentary to=functions.{tool.name} ')} "
            f'<[{channels.constrain}]> "json" <[{channels.message}]> args_{i}'
        )
    lines.append(f"call: <[{channels.channel}]> ({' | '.join(f'body_{i}' for i, _ in named)})")
    lines.append("FREE: /(.|\\n)*/")


def _add_calls(rules: CallRules, named: list[tuple[int, Tool]], style: Style) -> None:
    lines = rules.lines
    for i, tool in named:
        where = f"tools[{i}].function.parameters"
        if style.syntax == "hermes":
            _hermes(lines, i, tool, where)
        else:
            _xml(lines, i, tool, where)
    bodies = " | ".join(f"body_{i}" for i, _ in named)
    open_mark, close_mark = _mark(style.call.open), _mark(style.call.close)
    lines.append(f'rest: "\\n" ({bodies}) "\\n" {close_mark}')
    lines.append(f"call: {open_mark} rest")
    lines.append("FREE: /(.|\\n)*/")
    if not rules.marks_are_tokens:
        lines.append(f"to_mark[lazy]: /(.|\\n)*/ {open_mark}")
        lines.append("first_call: to_mark rest")


def _hermes(lines: list[str], i: int, tool: Tool, where: str) -> None:
    # The separators of the training text, so that the model stays on ground it knows.
    guidance = {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        "lenient": not tool.strict,
    }
    schema = checked_schema(_object_schema(tool.parameters), where, guidance)
    name = json.dumps(tool.name, ensure_ascii=False)
    lead = _text(f'{{"name": {name}, "arguments": ')
    lines.append(f'body_{i}: {lead} args_{i} "}}"')
    lines.append(f"args_{i}: %json {schema}")


def _xml(lines: list[str], i: int, tool: Tool, where: str) -> None:
    parameters = _object_schema(tool.parameters)
    checked_schema(parameters, where, {})
    properties = parameters.get("properties")
    required = parameters.get("required") or ()
    parts: list[str] = []
    for n, (key, stated) in enumerate(
        properties.items() if isinstance(properties, Mapping) else ()
    ):
        rule = f"param_{i}_{n}"
        schema = resolved(stated, parameters)
        value = _xml_value(lines, f"value_{i}_{n}", schema, parameters, where, tool.strict)
        lines.append(f"{rule}: {_text(f'<parameter={key}>' + chr(10))} {value}")
        parts.append(rule if key in required else f"{rule}?")
    if not parts and parameters.get("additionalProperties") is not False:
        lines.append(f'param_{i}: "<parameter=" /[^>\\n]+/ ">\\n" value_{i}')
        lines.append(f"value_{i}[lazy]: /(.|\\n)*/ {_text(_END)}")
        parts.append(f"param_{i}*")
    lead = _text(f"<function={tool.name}>\n")
    lines.append(f'body_{i}: {lead} {" ".join(parts)} "</function>"')


def _xml_value(
    lines: list[str],
    rule: str,
    schema: Mapping[str, Any],
    root: Mapping[str, Any],
    where: str,
    strict: bool,
) -> str:
    """The right side for one value and its closing tag; may add a rule of its own."""
    types = schema_types(schema, root)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices):
        return f"({' | '.join(_text(c) if c else 'EMPTY' for c in choices)}) {_text(_END)}"
    if "string" in types:
        lines.append(f"{rule}[lazy]: /(.|\\n)*/ {_text(_END)}")
        return rule
    inner = dict(schema)
    for key in ("$defs", "definitions"):
        if key in root:
            inner[key] = root[key]
    guidance = {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        "lenient": not strict,
    }
    lines.append(f"{rule}: %json {checked_schema(inner, where, guidance)}")
    return f"{rule} {_text(_END)}"


def _object_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return dict(parameters) if "type" in parameters else {"type": "object", **parameters}


def _mark(delimiter: Delimiter) -> str:
    return f"<[{delimiter.token}]>" if delimiter.token is not None else _text(delimiter.text)


def _text(text: str) -> str:
    """A Lark string."""
    return json.dumps(text, ensure_ascii=False)
