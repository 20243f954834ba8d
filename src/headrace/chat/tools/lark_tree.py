"""Lark grammars of plain text as trees: rules over names, terminals over classes of characters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as made
from graphlib import CycleError, TopologicalSorter

from headrace.chat.tools.regex_tree import (
    HIGH,
    Choice,
    Leaf,
    Name,
    Node,
    Repeat,
    Seq,
    bits,
    char_leaf,
    check_named,
    choice,
    inner,
    refused,
    regex_tree,
    seq,
)
from headrace.errors import RequestError

MAX_DEPTH = 100  # of brackets, and of all within a terminal
MAX_NODES = 5000  # of all rules, and of all terminals with those within them
_STRING = r'"(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|[^"\\\x00-\x1f\x7f])*"'
_TOKEN = re.compile(
    rf"""(?P<comment>(?:\#|//)[^\n]*)
    |(?P<range>{_STRING}[ \t]*\.\.[ \t]*{_STRING})
    |(?P<string>{_STRING}i?)
    |(?P<regexp>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<import>%import[ \t][^\n]*)
    |(?P<ignore>%ignore\b)
    |(?P<refused>%[a-z_]*|@[\w{{}}-]*|<[^<>\s]*>?|["/].{{0,20}})
    |(?P<line>\n)
    |(?P<blank>[ \t\r\f]+)
    |(?P<name>[a-zA-Z_]\w*(?:-+\w+)*)
    |(?P<count>\{{[ ]*(?P<least>\d{{0,6}})[ ]*(?P<comma>,?)[ ]*(?P<most>\d{{0,6}})[ ]*\}})
    |(?P<alias>->)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_IMPORT = re.compile(
    r"%import\s+common\s*(?:\.\s*(?P<name>\w+)\s*(?:->\s*(?P<alias>\w+))?|\((?P<names>[\w\s,]+)\))"
    r"\s*(?:(?:\#|//).*)?"
)
_NUMBER = r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?"
_FLOAT = r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
# What `%import common.NAME` means.
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?({_FLOAT})",
    "NUMBER": _NUMBER,
    "SIGNED_NUMBER": f"[+-]?({_NUMBER})",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',  # the library's; Lark's own holds no line break
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*([^*]|\*+[^*\/])*\*+\/",
    "SQL_COMMENT": r"--[^\n]*",
}


def checked_lark(grammar: str, field: str) -> str:
    """`grammar` if it speaks of text alone. Raises RequestError naming `field` where it refers to
    tokens, other grammars, or JSON schemas."""
    for token in _TOKEN.finditer(grammar):
        if token.lastgroup == "refused":
            raise RequestError(
                f"{token.group()!r} in a grammar of text",
                field=field,
                expected="rules, terminals, %ignore and %import common",
            )
    return grammar


@dataclass(slots=True)
class Lark:
    """`rules` are trees over names; a literal of a rule is a terminal named by its own text.
    `terminals` are trees over classes; of those in `ignored` any may stand behind each terminal."""

    rules: dict[str, Node] = made(default_factory=dict)
    terminals: dict[str, Node] = made(default_factory=dict)
    ignored: list[str] = made(default_factory=list)


def is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def lark_tree(grammar: str, field: str) -> Lark:
    """Of a grammar that `checked_lark` lets pass. Raises RequestError naming `field` for what is no
    grammar of that kind: attributes, priorities, `&` and `~`, rules too deep or too large, and
    mistakes."""
    check_named(grammar, field)
    return _Reader(grammar, field).read()


def names(node: Node) -> set[str]:
    found: set[str] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Name):
            found.add(one.name)
        waiting += inner(one)
    return found


class _Reader:
    def __init__(self, grammar: str, field: str) -> None:
        tokens = _TOKEN.finditer(grammar)
        self._tokens = [t for t in tokens if t.lastgroup not in ("blank", "comment")]
        self._at = 0
        self._field = field
        self._depth = 0
        self._literals: dict[str, Node] = {}

    def read(self) -> Lark:
        lark, defined = Lark(), dict[str, Node]()
        while (kind := self._kind()) is not None:
            if kind == "line":
                self._at += 1
                continue
            if kind == "import":
                found = self._import()
            elif kind == "ignore":
                self._at += 1
                name = f"%ignore {len(lark.ignored)}"
                lark.ignored.append(name)
                found = {name: self._expression(terminal=True)}
            else:
                found = self._definition()
            if defined.keys() & found.keys() or self._kind() not in (None, "line"):
                raise self._wrong()
            defined |= found
        for name, body in defined.items():
            terminal = name in lark.ignored or is_terminal(name)
            (lark.terminals if terminal else lark.rules)[name] = body
        lark.terminals |= self._literals
        return _resolved(lark, self._field)

    def _import(self) -> dict[str, Node]:
        found = _IMPORT.fullmatch(self._take().strip())
        said = [] if found is None else re.findall(r"\w+", found["names"] or found["name"])
        if found is None or not set(said) <= COMMON.keys():
            raise self._wrong()
        trees = {name: regex_tree(COMMON[name], "", self._field) for name in said}
        return {found["alias"] or name: tree for name, tree in trees.items()}

    def _definition(self) -> dict[str, Node]:
        while self._text() in ("?", "!"):
            self._at += 1
        if self._kind() != "name":
            raise self._wrong()
        name = self._take()
        if self._take() != ":":  # an attribute or a priority
            raise self._wrong()
        return {name: self._expression(terminal=is_terminal(name))}

    def _expression(self, *, terminal: bool) -> Node:
        """Up to the end of its line, or the bracket around it."""
        ways: list[list[Node]] = [[]]
        while (kind := self._kind()) is not None:
            text = self._text()
            if kind == "line":
                after = self._at
                while after < len(self._tokens) and self._tokens[after].lastgroup == "line":
                    after += 1
                more = self._tokens[after].group() if after < len(self._tokens) else ""
                if not self._depth and more != "|":
                    break
                self._at = after
            elif text in (")", "]"):
                break
            elif text == "|":
                ways.append([])
                self._at += 1
            elif kind == "alias":
                self._at += 1
                if self._kind() != "name":
                    raise self._wrong()
                self._at += 1
            else:
                ways[-1].append(self._item(terminal=terminal))
        return choice([seq(way) for way in ways])

    def _item(self, *, terminal: bool) -> Node:
        node = self._atom(terminal=terminal)
        sign = self._text()
        if sign in ("?", "*", "+"):
            self._at += 1
            return Repeat(node, int(sign == "+"), 1 if sign == "?" else None)
        if self._kind() == "count":
            found = self._tokens[self._at]
            self._at += 1
            least = int(found["least"] or 0)
            most = int(found["most"]) if found["most"] else None if found["comma"] else least
            return Repeat(node, least, most)
        return node

    def _atom(self, *, terminal: bool) -> Node:
        kind, text = self._kind(), self._take()
        if kind == "name":
            return Name(text)
        if text in ("(", "["):
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise refused("a hundred brackets within each other", self._field)
            node = self._expression(terminal=terminal)
            self._depth -= 1
            if self._take() != {"(": ")", "[": "]"}[text]:
                raise self._wrong()
            return Repeat(node, 0, 1) if text == "[" else node
        if kind not in ("range", "string", "regexp"):
            raise self._wrong()
        literal = _literal(kind, text, self._field)
        if terminal:
            return literal
        self._literals[text] = literal
        return Name(text)

    def _kind(self) -> str | None:
        return self._tokens[self._at].lastgroup if self._at < len(self._tokens) else None

    def _text(self) -> str:
        return self._tokens[self._at].group() if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        text = self._text()
        self._at += 1
        return text

    def _wrong(self) -> RequestError:
        return refused(f"{self._text()[:20]!r} where it is not known", self._field)


def _literal(kind: str, text: str, field: str) -> Node:
    if kind == "regexp":
        pattern, flags = text[1:].rsplit("/", 1)
        return regex_tree(pattern, flags, field)
    if kind == "string":
        value = json.loads(text.removesuffix("i"))
        return seq([char_leaf(char, fold=text.endswith("i")) for char in value])
    low, high = (json.loads(found) for found in re.findall(_STRING, text))
    if len(low) != 1 or len(high) != 1:
        raise refused(text[:20], field)
    held = bits("".join(c for c in map(chr, range(128)) if low <= c <= high))
    range_ = f"[\\x{{{ord(low):x}}}-\\x{{{ord(high):x}}}]"
    return Leaf(range_, held | (HIGH if ord(high) > 127 else 0))


def _resolved(lark: Lark, field: str) -> Lark:
    """With the terminals in terminals put in their places, and without those not spoken of."""
    spoken = {name for body in lark.rules.values() for name in names(body)}
    nodes = lark.terminals
    within = {name: names(body) for name, body in nodes.items()}
    if not spoken <= nodes.keys() | lark.rules.keys() or "start" not in lark.rules:
        raise refused("a name that is not known", field)
    if not all(held <= nodes.keys() for held in within.values()):
        raise refused("a name that is not known", field)
    sizes: dict[str, int] = {}
    depths: dict[str, int] = {}
    try:
        order = list(TopologicalSorter(within).static_order())
    except CycleError as error:
        raise refused("a terminal within itself", field) from error
    for name in order:
        sizes[name] = _size(nodes[name], sizes)
        depths[name] = _depth(nodes[name], depths)
        if sizes[name] > MAX_NODES or depths[name] > MAX_DEPTH:
            raise refused("a terminal too large or too deep", field)
        nodes[name] = _filled(nodes[name], nodes)
    kept = {name: nodes[name] for name in nodes if name in spoken or name in lark.ignored}
    parts = sum(sizes[name] for name in kept) + sum(_size(body, {}) for body in lark.rules.values())
    if parts > MAX_NODES:
        raise refused(f"a grammar of more than {MAX_NODES} parts", field)
    lark.terminals = kept
    return lark


def _size(node: Node, sizes: Mapping[str, int]) -> int:
    """In parts."""
    if isinstance(node, Name):
        return sizes.get(node.name, 1)
    return 1 + sum(_size(part, sizes) for part in inner(node))


def _depth(node: Node, depths: Mapping[str, int]) -> int:
    if isinstance(node, Name):
        return depths.get(node.name, 1)
    return 1 + max((_depth(part, depths) for part in inner(node)), default=0)


def _filled(node: Node, nodes: Mapping[str, Node]) -> Node:
    match node:
        case Name(name):
            return nodes[name]
        case Seq(parts):
            return Seq(tuple(_filled(part, nodes) for part in parts))
        case Choice(ways):
            return Choice(tuple(_filled(way, nodes) for way in ways))
        case Repeat(body, least, most):
            return Repeat(_filled(body, nodes), least, most)
    return node
