"""How each syntax writes its calls, as grammar rules: what a model is held to.

What a grammar lets through is what the syntax's own reader reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.chat.schema_text import checked_schema
from headrace.chat.tools.gemma import QUOTE
from headrace.chat.tools.nested import NS
from headrace.chat.tools.rules import Notation, Rules, literal
from headrace.chat.tools.schema import resolved, schema_types
from headrace.chat.tools.syntaxes import (
    ARGS,
    DSML,
    DSML_TAGS,
    GLM_TAGS,
    HY,
    HY_TAGS,
    KIMI_SEP,
    MINIMAX_TAGS,
    QWEN_TAGS,
    SEP,
)
from headrace.chat.tools.tagged import Tags
from headrace.chat.types import INPUT, Tool

Body = Callable[[Rules, int, Tool, str], str]  # rules, number and field of the tool -> right side


@dataclass(frozen=True, slots=True)
class Writing:
    """Of one syntax: `body` between a call's marks, with `lead` and `tail`; `between` calls, and
    `first` and `last` around all of them. `single`: a turn has one call."""

    body: Body
    lead: str = ""
    tail: str = ""
    first: str = ""
    between: str = ""
    last: str = ""
    marked: bool = True  # each call has its marks, not all of them together
    single: bool = False
    around: tuple[tuple[str, str], ...] = ()  # marks around free text, which may be left out
    shaped: bool = False  # how a value is written depends on its schema


def object_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return dict(parameters) if "type" in parameters else {"type": "object", **parameters}


def arguments(rules: Rules, i: int, tool: Tool, where: str) -> str:
    """The JSON object of a call's arguments."""
    if tool.grammar is not None:
        text = rules.input_json(f"input_{i}", tool.grammar)
        return f"{literal(f'{{{json.dumps(INPUT)}: ')} {text} {literal('}')}"
    schema = object_schema(tool.parameters)
    return rules.json(f"args_{i}", schema, where, strict=tool.strict)


def _json_object(key: str, rules: Rules, i: int, tool: Tool, where: str) -> str:
    name = json.dumps(tool.name, ensure_ascii=False)
    lead = rules.text(f'{{"name": {name}, "{key}": ')
    return f'{lead} {arguments(rules, i, tool, where)} "}}"'


def _cohere(rules: Rules, i: int, tool: Tool, where: str) -> str:
    name = json.dumps(tool.name, ensure_ascii=False)
    lead, follow = rules.text('{"tool_call_id": "'), rules.text(f'", "tool_name": {name}, ')
    number, key = "/[0-9]{1,4}/", rules.text('"parameters": ')
    return f'{lead} {number} {follow} {key} {arguments(rules, i, tool, where)} "}}"'


def _keyed(rules: Rules, i: int, tool: Tool, where: str) -> str:
    lead = rules.text(f"{{{json.dumps(tool.name, ensure_ascii=False)}: ")
    return f'{lead} {arguments(rules, i, tool, where)} "}}"'


def _named(
    lead: str, number: str, separator: str, rules: Rules, i: int, tool: Tool, where: str
) -> str:
    parts = (rules.text(lead + tool.name), number, rules.text(separator))
    return " ".join((*(part for part in parts if part), arguments(rules, i, tool, where)))


# --- tagged parameters ----------------------------------------------------------------------------


def _tagged(tags: Tags, line: str, rules: Rules, i: int, tool: Tool, where: str) -> str:
    """`line` is the layout behind the name and each parameter, and around values of `tags.line`."""
    parameters = object_schema(tool.parameters)
    checked_schema(parameters, where, {})
    properties = parameters.get("properties")
    required = parameters.get("required") or ()
    parts: list[str] = []
    stated = properties.items() if isinstance(properties, Mapping) else ()
    for n, (key, value) in enumerate(stated):
        schema = resolved(value, parameters)
        right = _tagged_value(rules, tags, line, f"{i}_{n}", key, schema, parameters, where, tool)
        rule = rules.add(f"param_{i}_{n}", right)
        parts.append(rule if key in required else f"{rule}?")
    if not parts and parameters.get("additionalProperties") is not False:
        parts.append(f"{_any_parameter(rules, tags, line, i)}*")
    name = rules.text(tags.function + tool.name + tags.name_end + line)
    end = rules.text(tags.end)
    return " ".join(part for part in (name, *parts, end) if part)


def _tagged_value(
    rules: Rules,
    tags: Tags,
    line: str,
    number: str,
    key: str,
    schema: Mapping[str, Any],
    root: Mapping[str, Any],
    where: str,
    tool: Tool,
) -> str:
    edge = "\n" if tags.line else ""
    types = schema_types(schema, root)
    end = edge + tags.value_end + line

    def opened(*, text: bool) -> str:
        kind = ('" string="true' if text else '" string="false') if tags.typed else ""
        gap = line if tags.value else ""
        return rules.text(tags.parameter + key + kind + tags.key_end + gap + tags.value + edge)

    if tool.grammar is not None and key == INPUT:
        text = rules.input_until(f"value_{number}", tool.grammar, end)
        return f"{opened(text=True)} {text}"
    choices = _text_choices(rules, schema)
    if choices:
        return f"{opened(text=True)} {choices} {rules.text(end)}"
    if "string" in types:
        return f"{opened(text=True)} {rules.until(f'value_{number}', end)}"
    inner = {**schema, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
    value = rules.json(f"value_{number}", inner, where, strict=tool.strict)
    return f"{opened(text=False)} {value} {rules.text(end)}"


def _text_choices(rules: Rules, schema: Mapping[str, Any]) -> str:
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        return ""
    said = " | ".join(rules.text(choice) or '""' for choice in choices)
    return f"({said})" if choices else ""


def _any_parameter(rules: Rules, tags: Tags, line: str, i: int) -> str:
    edge = "\n" if tags.line else ""
    gap = (line if tags.value else "") + tags.value + edge
    kind = '" string="true' if tags.typed else ""
    lead, follow = rules.text(tags.parameter), rules.text(kind + tags.key_end + gap)
    key = rules.add("ANY_KEY", '/[^<>"\\n]{1,64}/')
    value = rules.until(f"value_{i}", edge + tags.value_end + line)
    return rules.add(f"param_{i}", f"{lead} {key} {follow} {value}")


# --- other notations ------------------------------------------------------------------------------


def _quoted(rules: Rules) -> str:
    return f"{rules.text(QUOTE)} {rules.until('quoted', QUOTE)}"


def _python_text(rules: Rules) -> str:
    rules.json("json_text", {"type": "string"}, "tools", strict=True)
    rules.add("SINGLE_QUOTED", r"""/'([^'\\\x00-\x1f\x7f]|\\[\\'"nrt])*'/""")
    return rules.add("python_text", "json_text | SINGLE_QUOTED")


def _python_constant(rules: Rules, text: str) -> str:
    return f"({rules.text(json.dumps(text))} | {rules.text(repr(text))})"


GEMMA = Notation(
    text=_quoted,
    constant=lambda rules, text: rules.text(QUOTE + text + QUOTE),
    key=lambda rules, key: rules.text(f"{key}:"),
    any_key=lambda rules: rules.add("ANY_KEY", "/[A-Za-z0-9_]{1,64}:/"),
    words={True: "true", False: "false", None: "null"},
    separator=",",
    sorted_keys=True,
)
PYTHON = Notation(
    text=_python_text,
    constant=_python_constant,
    key=lambda rules, key: f'{_python_constant(rules, key)} ": "',
    any_key=lambda rules: f'{_python_text(rules)} ": "',
    words={True: "True", False: "False", None: "None"},
    separator=", ",
)


def _gemma(rules: Rules, i: int, tool: Tool, where: str) -> str:
    if tool.grammar is not None:
        text = rules.input_until(f"input_{i}", tool.grammar, QUOTE)
        lead = rules.text(f"call:{tool.name}{{{INPUT}:{QUOTE}")
        return f"{lead} {text} {literal('}')}"
    schema = object_schema(tool.parameters)
    checked_schema(schema, where, {})
    pairs = GEMMA.object(rules, f"args_{i}", schema, schema, 0)
    return f"{rules.text(f'call:{tool.name}')} {pairs}"


def _python(rules: Rules, i: int, tool: Tool, where: str) -> str:
    if tool.grammar is not None:
        text = rules.input_json(f"input_{i}", tool.grammar)  # a Python string, too
        return f'{rules.text(f"{tool.name}({INPUT}=")} {text} ")"'
    schema = object_schema(tool.parameters)
    checked_schema(schema, where, {})
    properties = schema.get("properties")
    row = ""
    if isinstance(properties, Mapping):
        required = schema.get("required") or ()
        items: list[tuple[str, bool]] = []
        for n, key in enumerate(properties):
            inner = f"args_{i}_{n}"
            value = PYTHON.value(rules, inner, properties[key], schema)
            rules.add(f"{inner}_pair", f"{rules.text(f'{key}=')} {value}")
            items.append((f"{inner}_pair", key in required))
        row = rules.row(f"args_{i}", items, literal(", "))
    return f'{rules.text(f"{tool.name}(")} {row} ")"'


def _nested(rules: Rules, i: int, tool: Tool, where: str) -> str:
    if tool.grammar is not None:
        text = rules.input_until(f"input_{i}", tool.grammar, f"{NS}</{INPUT}>")
        lead = rules.text(f'{tool.name}">{NS}<{INPUT}>')
        return f"{lead} {text}"
    schema = object_schema(tool.parameters)
    checked_schema(schema, where, {})
    inner = _nested_object(rules, f"args_{i}", schema, schema, 0)
    lead = rules.text(tool.name + '">')
    return f"{lead} {inner}"


def _nested_object(
    rules: Rules, name: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or depth > 6:
        return ""
    required = schema.get("required") or ()
    parts: list[str] = []
    for n, key in enumerate(properties):
        inner = resolved(properties[key], root)
        value = _nested_value(rules, f"{name}_{n}", inner, root, f"</{key}>", depth + 1)
        rule = rules.add(f"{name}_{n}_tag", f"{rules.text(f'{NS}<{key}>')} {value}")
        parts.append(rule if key in required else f"{rule}?")
    return " ".join(parts)


def _nested_value(
    rules: Rules,
    name: str,
    schema: Mapping[str, Any],
    root: Mapping[str, Any],
    end: str,
    depth: int,
) -> str:
    """A value and its closing tag."""
    types, closing = schema_types(schema, root), rules.text(NS + end)
    choices = _text_choices(rules, schema)
    if choices:
        return f"{choices} {closing}"
    if "string" in types:
        return rules.until(name, NS + end)
    if "object" in types and isinstance(schema.get("properties"), Mapping):
        return f"{_nested_object(rules, name, schema, root, depth)} {closing}"
    if "array" in types and depth <= 6:
        items = resolved(schema.get("items"), root)
        value = _nested_value(rules, f"{name}_i", items, root, "</item>", depth + 1)
        item = rules.add(f"{name}_item", f"{rules.text(f'{NS}<item>')} {value}")
        return f"{item}* {closing}"
    value = rules.json(f"{name}_json", schema, "tools", strict=True)
    return f"{value} {closing}"


def _dsml(wrap: str) -> Writing:
    return Writing(
        partial(_tagged, DSML_TAGS, "\n"),
        first=f"<{DSML}{wrap}>\n",
        between="\n",
        last=f"\n</{DSML}{wrap}>",
        shaped=True,
    )


WRITINGS: Mapping[str, Writing] = {
    "hermes": Writing(partial(_json_object, "arguments"), "\n", "\n", between="\n"),
    "qwen_xml": Writing(partial(_tagged, QWEN_TAGS, "\n"), "\n", "\n", between="\n"),
    "seed": Writing(partial(_tagged, QWEN_TAGS, "\n"), "\n", "\n", between="\n"),
    "glm": Writing(partial(_tagged, GLM_TAGS, "\n"), between="\n"),
    "glm_tight": Writing(partial(_tagged, GLM_TAGS, "")),
    "minimax": Writing(
        partial(_tagged, MINIMAX_TAGS, "\n"),
        first="<minimax:tool_call>\n",
        between="\n",
        last="\n</minimax:tool_call>",
    ),
    "dsml": _dsml("tool_calls"),
    "dsml_functions": _dsml("function_calls"),
    "minimax_nested": Writing(
        _nested,
        first=f"{NS}<tool_call>\n",
        between="\n",
        last=f"\n{NS}</tool_call>",
        shaped=True,
    ),
    "deepseek": Writing(
        partial(_named, "", "", SEP),
        first="<｜tool▁calls▁begin｜>",
        last="<｜tool▁calls▁end｜>",
    ),
    "kimi": Writing(
        partial(_named, "functions.", "/:[0-9]{1,4}/", KIMI_SEP),
        first="<|tool_calls_section_begin|>",
        last="<|tool_calls_section_end|>",
    ),
    "mistral": Writing(partial(_named, "", "", ARGS)),
    "gemma": Writing(_gemma),
    "json_rows": Writing(
        partial(_json_object, "arguments"),
        first="<tool_calls>\n",
        between="\n",
        last="\n</tool_calls>",
        marked=False,
    ),
    "json_list": Writing(
        partial(_json_object, "arguments"),
        first="<TOOLCALL>[",
        between=", ",
        last="]</TOOLCALL>",
        marked=False,
    ),
    "hunyuan": Writing(
        partial(_tagged, HY_TAGS, "\n"),
        first=f"<tool_calls{HY}>\n",
        between="\n",
        last=f"\n</tool_calls{HY}>",
    ),
    "cohere": Writing(
        _cohere,
        first="<|START_ACTION|>[\n    ",
        between=",\n    ",
        last="\n]<|END_ACTION|>",
        marked=False,
        around=(("<|START_TEXT|>", "<|END_TEXT|>"), ("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    ),
    "apertus": Writing(
        _keyed,
        first="<|tools_prefix|>[",
        between=", ",
        last="]<|tools_suffix|>",
        marked=False,
    ),
    "granite": Writing(
        partial(_json_object, "arguments"),
        first="<|tool_call|>[",
        between=", ",
        last="]",
        marked=False,
    ),
    "gigachat": Writing(partial(_json_object, "arguments"), single=True),
    "lfm": Writing(
        _python,
        first="<|tool_call_start|>[",
        between=", ",
        last="]<|tool_call_end|>",
        marked=False,
        shaped=True,
    ),
    "python": Writing(
        _python,
        first="<|python_start|>[",
        between=", ",
        last="]<|python_end|>",
        marked=False,
        shaped=True,
    ),
    "python_bare": Writing(_python, first="[", between=", ", last="]", marked=False, shaped=True),
    "llama_json": Writing(partial(_json_object, "parameters"), single=True),
    "llama_json_bare": Writing(partial(_json_object, "parameters"), marked=False, single=True),
}
