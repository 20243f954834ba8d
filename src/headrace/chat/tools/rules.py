"""Grammar rules, line by line: texts with marks in them, and values in a notation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llguidance

from headrace.chat.schema_text import checked_schema
from headrace.chat.tools.lark_text import lark_in_json
from headrace.chat.tools.lark_tree import checked_lark
from headrace.chat.tools.regex_text import regex_in_json
from headrace.chat.tools.schema import resolved, schema_types
from headrace.chat.types import TextInput
from headrace.errors import RequestError

# The separators of the training text, so that the model stays on ground it knows.
_PLAIN_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
Schema = Mapping[str, Any]
_MAX_DEPTH = 6  # of objects and lists whose schema is followed; deeper ones hold any value
_MAX_ITEMS = 256
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


@dataclass
class Rules:
    """Lines of one grammar. `marks` are texts that are one token, by which a rule names them."""

    marks: Mapping[str, int]
    lines: list[str] = field(default_factory=list)
    grammars: list[dict[str, str]] = field(default_factory=list)  # that lines speak of by name
    _names: set[str] = field(default_factory=set)

    def add(self, name: str, right: str) -> str:
        """A rule, once; returns its name."""
        if self.begin(name):
            self.lines.append(f"{name}: {right}")
        return name

    def begin(self, name: str) -> bool:
        """Whether `name` is new; from now on it is not."""
        new = name not in self._names
        self._names.add(name)
        return new

    def text(self, text: str) -> str:
        """`text` as terminals; empty for no text."""
        parts = re.split("(" + "|".join(map(re.escape, self._longest_first())) + ")", text)
        spelled = (
            f"<[{self.marks[part]}]>" if part in self.marks else _lines(part)
            for part in (parts if self.marks else [text])
            if part
        )
        return " ".join(spelled)

    def until(self, name: str, end: str) -> str:
        """Any text up to `end`, which belongs to the rule."""
        first = min(
            (at for mark in self.marks if (at := end.find(mark)) >= 0),
            default=None,
        )
        if first is None:
            return self.add(f"{name}[lazy]", f"/(.|\\n)*/ {self.text(end)}").partition("[")[0]
        # A token ends the text, and what stands before it in the same mark ends the text, too.
        before = re.escape(end[:first]).replace("/", r"\/")
        lead = self.add(f"{name.upper()}_TEXT", f"/(.|\\n)*{before}/")
        return self.add(name, f"{lead} {self.text(end[first:])}")

    def json(self, name: str, schema: Mapping[str, Any], where: str, *, strict: bool) -> str:
        guidance = {**_PLAIN_JSON, "lenient": not strict}
        return self.add(name, f"%json {checked_schema(schema, where, guidance)}")

    def input_json(self, name: str, grammar: TextInput) -> str:
        """A JSON string whose text `grammar` accepts; any string where its form inside JSON is
        not exact or not known."""
        if grammar.kind == "regex":
            try:
                lark = _lark_of(regex_in_json(grammar.pattern, "", grammar.field))
            except RequestError:
                lark = None
        else:
            lark = lark_in_json(grammar.pattern, grammar.field)
        if lark is None:
            return self.json(name, {"type": "string"}, grammar.field, strict=True)
        return rf'"\"" {self._grammar(name, lark)} "\""'

    def input_until(self, name: str, grammar: TextInput, end: str) -> str:
        """Text that `grammar` accepts, then `end`.

        Where `end` is mere text an expression is over at the first `end`; a Lark grammar must not
        go on over it by itself.
        """
        if grammar.kind == "regex":
            lark = _lark_of(grammar.pattern)
            if not any(mark in end for mark in self.marks):
                right = f"{lark.partition(':')[2].strip()} {self.text(end)}"
                return self.add(f"{name}[lazy]", right).partition("[")[0]
        else:
            lark = checked_lark(grammar.pattern, grammar.field)
        return f"{self._grammar(name, lark)} {self.text(end)}"

    def _grammar(self, name: str, lark: str) -> str:
        if self.begin(f"@{name}"):
            self.grammars.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def row(self, name: str, items: Sequence[tuple[str, bool]], separator: str) -> str:
        """The items in order with separators between; each is (rule, required)."""
        after = f"{name}_end"
        self.add(after, '""')
        following, first = after, after
        for k in reversed(range(len(items))):
            rule, required = items[k]
            begun = self.add(
                f"{name}_t{k}",
                f"{separator} {rule} {following}"
                if required
                else f"({separator} {rule})? {following}",
            )
            alone = f"{rule} {following}"
            first = self.add(f"{name}_s{k}", alone if required else f"{alone} | {first}")
            following = begun
        return first

    def _longest_first(self) -> list[str]:
        return sorted(self.marks, key=len, reverse=True)


@dataclass(frozen=True)
class Notation:
    """How values are written: `text` makes the rule of any string, `constant` that of one, `key`
    that of an object's key with what follows it."""

    text: Callable[[Rules], str]
    constant: Callable[[Rules, str], str]
    key: Callable[[Rules, str], str]
    any_key: Callable[[Rules], str]
    words: Mapping[Any, str]
    separator: str
    sorted_keys: bool = False

    def value(
        self, rules: Rules, name: str, schema: Any, root: Mapping[str, Any], depth: int = 0
    ) -> str:
        """The right side for one value of `schema`."""
        schema = resolved(schema, root)
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choices, list) and choices and depth < _MAX_DEPTH:
            return "(" + " | ".join(self._constant(rules, choice) for choice in choices) + ")"
        ways: list[str] = []
        for kind in sorted(schema_types(schema, root)):
            if kind == "string":
                ways.append(self.text(rules))
            elif kind in ("number", "integer"):
                bounds = {key: schema[key] for key in _BOUNDS if key in schema}
                number = {"type": kind, **bounds}
                ways.append(rules.json(f"{name}_{kind}", number, "tools", strict=False))
            elif kind == "boolean":
                ways += [literal(self.words[True]), literal(self.words[False])]
            elif kind == "null":
                ways.append(literal(self.words[None]))
            elif kind == "array":
                ways.append(self._list(rules, name, schema, root, depth))
            else:
                ways.append(self.object(rules, name, schema, root, depth))
        return "(" + " | ".join(ways) + ")"

    def object(
        self,
        rules: Rules,
        name: str,
        schema: Mapping[str, Any],
        root: Mapping[str, Any],
        depth: int,
    ) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties or depth >= _MAX_DEPTH:
            pair = f"{self.any_key(rules)} {self._any(rules)}"
            more = f"({literal(self.separator)} {pair}){{0,{_MAX_ITEMS}}}"
            return f'"{{" ({pair} {more})? "}}"'
        items = self.pairs(rules, name, schema, root, depth)
        return f'"{{" {rules.row(name, items, literal(self.separator))} "}}"'

    def pairs(
        self,
        rules: Rules,
        name: str,
        schema: Mapping[str, Any],
        root: Mapping[str, Any],
        depth: int,
    ) -> list[tuple[str, bool]]:
        properties = schema["properties"]
        required = schema.get("required") or ()
        keys = sorted(properties) if self.sorted_keys else list(properties)
        items: list[tuple[str, bool]] = []
        for n, key in enumerate(keys):
            inner = f"{name}_{n}"
            value = self.value(rules, inner, properties[key], root, depth + 1)
            rules.add(f"{inner}_pair", f"{self.key(rules, key)} {value}")
            items.append((f"{inner}_pair", key in required))
        return items

    def _list(
        self,
        rules: Rules,
        name: str,
        schema: Mapping[str, Any],
        root: Mapping[str, Any],
        depth: int,
    ) -> str:
        deep = depth >= _MAX_DEPTH or "items" not in schema
        inner = f"{name}_i"
        value = (
            self._any(rules)
            if deep
            else rules.add(inner, self.value(rules, inner, schema["items"], root, depth + 1))
        )
        return f'"[" ({value} ({literal(self.separator)} {value}){{0,{_MAX_ITEMS}}})? "]"'

    def _any(self, rules: Rules) -> str:
        if rules.begin("any_value"):  # the rule speaks of itself
            kinds = ["string", "number", "boolean", "null", "array", "object"]
            right = self.value(rules, "any", {"type": kinds}, {}, _MAX_DEPTH)
            rules.lines.append(f"any_value: {right}")
        return "any_value"

    def _constant(self, rules: Rules, value: Any) -> str:
        if isinstance(value, str):
            return self.constant(rules, value)
        if value is None or isinstance(value, bool):
            return literal(self.words[value])
        return literal(json.dumps(value))


def _lark_of(regex: str) -> str:
    made = json.loads(llguidance.LLMatcher.grammar_from_regex(regex))
    return str(made["grammars"][0]["lark_grammar"])


def _lines(text: str) -> str:
    """Line breaks are terminals of their own: of texts that begin with one any may follow."""
    return " ".join(literal(part) for part in re.split("(\n)", text) if part)


def literal(text: str) -> str:
    """A Lark string."""
    return json.dumps(text, ensure_ascii=False)
