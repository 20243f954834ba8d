"""Tools of a Responses body: functions, custom tools and namespaces become the model's functions.

What only a hosted service can run (web search and the like) is not offered to the model; the
reply's `tools` lists what was. A custom tool is a function with one string, `input`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.api.custom_tools import custom_tool, read_grammar
from headrace.api.fields import Fields, shown
from headrace.api.openai import TOOL_NAME
from headrace.chat.types import TextInput, Tool, ToolChoice

Json = dict[str, Any]
Kind = Literal["function", "custom"]
KINDS: dict[str, Kind] = {"function": "function", "custom": "custom"}


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as the client knows it; `flat` is its name for the model."""

    kind: Kind
    name: str
    namespace: str | None
    flat: str


@dataclass(slots=True)
class Toolbox:
    """What the model is offered, by the name it knows, and the same in the client's shape."""

    tools: list[Tool] = field(default_factory=list)
    offered: dict[str, Offered] = field(default_factory=dict)
    echo: list[Json] = field(default_factory=list)

    def add(self, entry: Fields) -> None:
        """One entry of `tools`. Raises RequestError where it is malformed or its name is taken."""
        name = entry.required_text("type")
        if name == "namespace":
            self._add_namespace(entry)
        elif (kind := KINDS.get(name)) is not None:
            self.echo.append(self._add(entry, kind, None))

    def _add_namespace(self, entry: Fields) -> None:
        space = _name(entry)
        description = entry.text("description") or ""
        inner = []
        for child in entry.children("tools") or []:
            kind = KINDS.get(child.required_text("type"))
            if kind is not None:
                inner.append(self._add(child, kind, space))
        entry.done()
        if inner:
            echo = {"type": "namespace", "name": space, "description": description, "tools": inner}
            self.echo.append(echo)

    def _add(self, entry: Fields, kind: Kind, space: str | None) -> Json:
        name = _name(entry)
        flat = flat_name(space, name)
        if flat in self.offered:
            raise entry.fault("name", f"{shown(name)} is given twice", expected="unique names")
        tool, echo = (_function if kind == "function" else _custom)(entry, flat, name)
        entry.harmless("defer_loading", "allowed_callers", "output_schema", "async").done()
        self.tools.append(tool)
        self.offered[flat] = Offered(kind, name, space, flat)
        return echo

    def choice(self, body: Fields) -> tuple[ToolChoice, Any]:
        """`tool_choice`, and its echo."""
        value = body.take("tool_choice")
        if value is None:
            return ToolChoice(), "auto"
        if isinstance(value, str):
            if value not in ("none", "auto", "required"):
                raise body.fault(
                    "tool_choice",
                    f"found {shown(value)}",
                    expected="none, auto, required, allowed_tools or a tool to call",
                )
            if value == "required" and not self.tools:
                raise body.fault(
                    "tool_choice", "required, but no tool is offered", expected="tools"
                )
            return ToolChoice(value), value  # type: ignore[arg-type]
        choice = Fields(value, body.path("tool_choice"))
        kind = choice.required_text("type")
        if kind == "allowed_tools":
            return self._allowed(choice), value
        found = self._chosen(choice, kind)
        choice.done()
        return ToolChoice("named", found), value

    def _allowed(self, choice: Fields) -> ToolChoice:
        mode = choice.choice("mode", ("auto", "required")) or "auto"
        entries = choice.children("tools")
        if not entries:
            raise choice.fault("tools", "missing or empty", expected="the tools that may be called")
        names = []
        for entry in entries:
            names.append(self._chosen(entry, entry.required_text("type")))
            entry.done()
        choice.done()
        return ToolChoice(mode, allowed=tuple(dict.fromkeys(names)))  # type: ignore[arg-type]

    def _chosen(self, choice: Fields, kind: str) -> str:
        """The model's name of the tool that `choice` names."""
        if kind not in ("function", "custom"):
            raise choice.fault(
                "type",
                f"a tool of type {shown(kind)} cannot be called",
                expected="function or custom: hosted tools are not offered to the model",
            )
        name, space = choice.required_text("name"), choice.text("namespace")
        fits = [
            o.flat
            for o in self.offered.values()
            if o.kind == kind and o.name == name and (space is None or o.namespace == space)
        ]
        if len(fits) != 1:
            flat = [o.flat for o in self.offered.values() if o.kind == kind]
            known = ", ".join(flat) or f"(no {kind} tools offered)"
            found = f"is not among the {kind} tools" if not fits else "stands in several namespaces"
            raise choice.fault("name", f"{shown(name)} {found}", expected=f"one of {known}")
        return fits[0]


def flat_name(namespace: str | None, name: str) -> str:
    """What the model calls a tool that may stand in a namespace."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _name(entry: Fields) -> str:
    name = entry.required_text("name")
    if not TOOL_NAME.fullmatch(name):
        raise entry.fault(
            "name", f"found {shown(name)}", expected="1 to 128 letters, digits or _ - . : /"
        )
    return name


def _function(entry: Fields, flat: str, name: str) -> tuple[Tool, Json]:
    description, parameters = entry.text("description"), entry.mapping("parameters")
    strict = entry.flag("strict")
    tool = Tool(flat, description or "", parameters or {}, strict or False)
    echo = {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "strict": strict or False,
    }
    return tool, echo


def _custom(entry: Fields, flat: str, name: str) -> tuple[Tool, Json]:
    description, wanted = entry.text("description"), entry.child("format")
    text = TextInput()
    shape: Json = {"type": "text"}
    if wanted is not None and wanted.choice("type", ("text", "grammar")) == "grammar":
        text = read_grammar(wanted)
        shape = {"type": "grammar", "syntax": text.kind, "definition": text.pattern}
    if wanted is not None:
        wanted.done()
    tool = custom_tool(flat, description, text)
    echo = {"type": "custom", "name": name, "description": description, "format": shape}
    return tool, echo
