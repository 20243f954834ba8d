"""Custom tools, whose calls are text: for the model they are functions with one string, `input`."""

from __future__ import annotations

import json

from headrace.api.fields import Fields
from headrace.chat.types import INPUT, TextInput, Tool


def custom_tool(name: str, description: str | None, text: TextInput) -> Tool:
    """What the model is offered under `name`."""
    if text.kind == "text":
        said = f"The argument `{INPUT}` is free text."
    else:
        what = "Lark grammar" if text.kind == "lark" else "regular expression"
        said = f"The argument `{INPUT}` must match this {what}:\n{text.pattern}"
    parameters = {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    lines = [description, said] if description else [said]
    return Tool(name, "\n\n".join(lines), parameters, input=text)


def read_grammar(entry: Fields) -> TextInput:
    """`syntax` and `definition` of `entry`. Raises RequestError where one is missing or wrong."""
    syntax = entry.choice("syntax", ("lark", "regex"))
    if syntax is None:
        raise entry.fault("syntax", "missing", expected="lark or regex")
    definition = entry.required_text("definition")
    if not definition:
        raise entry.fault("definition", "empty", expected=f"a {syntax} text")
    return TextInput(syntax, definition, entry.path("definition"))  # type: ignore[arg-type]


def custom_arguments(text: str) -> str:
    """A custom tool's input as the arguments of the model's function."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


class CustomInput:
    """The input among a call's arguments, as they come."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._input = InputText()

    def feed(self, arguments: str) -> str:
        self._arguments.append(arguments)
        return self._input.feed(arguments)

    def finish(self) -> str:
        """All of it where it was not read as it came, else nothing."""
        return "" if self._input.found else _whole_input("".join(self._arguments))


def _whole_input(arguments: str) -> str:
    """Of arguments that were not read as they came."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else None
    return _unescaped(json.dumps(text)[1:-1]) if isinstance(text, str) else arguments


class InputText:
    """Reads the string out of `{"input": "..."}` as its text comes; any cut gives the same."""

    HEAD = ("{", f'"{INPUT}"', ":", '"')

    def __init__(self) -> None:
        self._at = 0  # pieces of HEAD that were read
        self._held = ""  # what may go on to be a piece of HEAD or an escape
        self._closed = False

    @property
    def found(self) -> bool:
        """The string has begun: what `feed` gives is all of it."""
        return self._at == len(self.HEAD)

    def feed(self, text: str) -> str:
        """The characters of the string that this text completes."""
        self._held += text
        while not self.found:
            piece, held = self.HEAD[self._at], self._held.lstrip()
            if not held.startswith(piece):
                return ""
            self._at, self._held = self._at + 1, held[len(piece) :]
        return "" if self._closed else self._string()

    def _string(self) -> str:
        text, at = self._held, 0
        while at < len(text) and text[at] != '"':
            step = _escape_length(text, at) if text[at] == "\\" else 1
            if step == 0:
                break
            at += step
        self._closed = at < len(text) and text[at] == '"'
        self._held = text[at:]
        return _unescaped(text[:at])


def _unescaped(text: str) -> str:
    try:
        value = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
    # Half a surrogate pair, which a model may well write, is no text.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape_length(text: str, at: int) -> int:
    """Of the escape that begins here, both halves of a surrogate pair; 0 if it is not complete."""
    if len(text) < at + 2:
        return 0
    if text[at + 1] != "u":
        return 2
    if len(text) < at + 6:
        return 0
    if text[at + 2 : at + 4].lower() not in ("d8", "d9", "da", "db"):
        return 6
    rest = text[at + 6 : at + 12]
    if not rest.startswith("\\u"[: len(rest)]):
        return 6
    return 12 if len(rest) == 6 else 0
