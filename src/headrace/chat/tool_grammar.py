"""Grammar rules for calls: the family's syntax around each tool's schema."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from headrace.chat.schema_text import checked_schema
from headrace.chat.style import Channels, Style
from headrace.chat.tools.rules import Rules
from headrace.chat.tools.writing import WRITINGS, Writing, arguments, object_schema
from headrace.chat.types import ChatRequest, Tool
from headrace.errors import RequestError

# Blank space in JSON is bounded: a weak model would else write nothing but blanks for ever.
JSON_BLANK = r" {1,4}|\n[ \t]{0,60}"
ANY = {"type": "object"}
MAX_CALLS = 32  # of one turn under a grammar: a weak model would else never stop calling


@dataclass
class CallRules:
    """Rules whose alternatives `call` are the offered tools.

    `forced`: nothing but calls; else free text may come before them or instead of them.
    `several`: more than one call in a turn.
    """

    forced: bool
    several: bool
    channels: Channels | None = None
    free: str = ""  # the right side where text may come before calls or instead of them
    lines: list[str] = field(default_factory=list)
    grammars: list[dict[str, str]] = field(default_factory=list)  # that the lines speak of

    def start(self, *, format_given: bool) -> str:
        """The right side of the rule for a turn; a given format takes the place of free text."""
        if self.forced or format_given:
            return "calls"
        if self.channels is not None:
            return f"calls | {final(self.channels, 'FREE')}"
        return self.free


def holds_calls(request: ChatRequest) -> bool:
    """Whether a grammar about calls is asked for, directly or by a format beside tools."""
    choice = request.tool_choice
    if choice.mode == "none" or (not request.tools and choice.mode == "auto"):
        return False
    return (
        choice.mode in ("required", "named")
        or bool(choice.allowed)
        or any(tool.strict or tool.grammar is not None for tool in request.tools)
        or not request.parallel_tool_calls
        or request.format.kind != "text"
    )


def call_rules(request: ChatRequest, style: Style) -> CallRules | None:
    """The rules for the calls `request` allows, None where nothing about calls is constrained.

    That is: a call is forced, a tool is strict or takes text of a grammar, only some tools are
    allowed, calls must be single, or a format is given.
    Raises RequestError for an unknown tool and for a family whose syntax is not known.
    """
    if not holds_calls(request):
        return None
    choice = request.tool_choice
    forced = choice.mode in ("required", "named")
    strict = bool(choice.allowed) or any(tool.strict for tool in request.tools)
    held = any(tool.grammar is not None for tool in request.tools)
    if not request.tools:
        raise RequestError("a call is asked for but no tool is given", field="tool_choice")
    if style.syntax is None:
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
    if held and not (forced or strict):
        named = _freed(named, style)
    if not named:
        raise RequestError(
            f"tool_choice names {choice.name!r}",
            field="tool_choice",
            expected="one of " + ", ".join(tool.name for tool in request.tools),
        )
    # In a family of channels one call ends the turn.
    several = request.parallel_tool_calls and choice.mode != "named" and style.channels is None
    rules = CallRules(forced, several, channels=style.channels)
    if style.channels is not None:
        _add_channel_calls(rules, named, style.channels)
    else:
        _add_calls(rules, named, style)
    return rules


def _is_bare(style: Style) -> bool:
    return bool(style.calls and style.calls.bare) and style.call.open.token is None


def _writing(style: Style) -> Writing:
    assert style.syntax is not None
    return WRITINGS[f"{style.syntax}_bare" if _is_bare(style) else style.syntax]


def _freed(named: list[tuple[int, Tool]], style: Style) -> list[tuple[int, Tool]]:
    """The grammar is there for one tool's text: nobody asked that others keep to their schemas."""
    if style.channels is None and _writing(style).shaped:
        return named
    return [(i, tool if tool.grammar else replace(tool, parameters=ANY)) for i, tool in named]


def final(channels: Channels, rule: str) -> str:
    """`rule` as the text of the answer."""
    return f'<[{channels.channel}]> "final" <[{channels.message}]> {rule}'


def _add_channel_calls(rules: CallRules, named: list[tuple[int, Tool]], channels: Channels) -> None:
    lines = rules.lines
    for i, tool in named:
        where = f"tools[{i}].function.parameters"
        if tool.grammar is not None:
            made = Rules({}, lines, rules.grammars)
            made.add(f"args_{i}", arguments(made, i, tool, where))
        else:
            guidance = {"whitespace_pattern": JSON_BLANK, "lenient": not tool.strict}
            schema = checked_schema(object_schema(tool.parameters), where, guidance)
            lines.append(f"args_{i}: %json {schema}")
        lines.append(
            f"body_{i}: {_text(f'commentary to=functions.{tool.name} ')} "
            f'<[{channels.constrain}]> "json" <[{channels.message}]> args_{i}'
        )
    lines.append(f"calls: <[{channels.channel}]> ({' | '.join(f'body_{i}' for i, _ in named)})")
    lines.append("FREE: /(.|\\n)*/")


def _add_calls(rules: CallRules, named: list[tuple[int, Tool]], style: Style) -> None:
    assert style.syntax is not None
    made = Rules(style.atoms)
    open_mark, close_mark = style.call.open.text, style.call.close.text
    bare, writing = _is_bare(style), _writing(style)
    for i, tool in named:
        made.add(f"body_{i}", writing.body(made, i, tool, f"tools[{i}].function.parameters"))
    if not writing.marked:
        open_mark = close_mark = ""
    bodies = " | ".join(f"body_{i}" for i, _ in named)
    # Where nothing stands around all calls, the mark of the first one begins them.
    first, opened = (writing.first, open_mark) if writing.first else (open_mark, "")
    inner = _joined(made.text(writing.lead), f"({bodies})", made.text(writing.tail + close_mark))
    made.add("call", _joined(made.text(open_mark), inner))
    more = ""
    if rules.several and not writing.single:
        more = f"({_joined(made.text(writing.between), 'call')}){{0,{MAX_CALLS - 1}}}"
    made.add("rest", _joined(made.text(opened), inner, more, made.text(writing.last)))
    made.add("calls", _joined(made.text(first), "rest"))
    made.add("FREE", "/(.|\\n)*/")
    if any(first.startswith(mark) for mark in style.atoms):
        texts = [f"{made.text(a)} FREE {made.text(b)}" for a, b in writing.around]
        rules.free = f"({' | '.join(('FREE', *texts))}) calls?"
    elif bare:
        made.add("PLAIN", r"/([^\[{\s](.|\n)*)?/")
        rules.free = "PLAIN | calls"
    else:
        rules.free = f"FREE | {made.until('to_mark', first)} rest"
    rules.lines += made.lines
    rules.grammars += made.grammars


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _text(text: str) -> str:
    """A Lark string."""
    return json.dumps(text, ensure_ascii=False)
