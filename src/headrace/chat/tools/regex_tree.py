"""Regular expressions (in the syntax of Rust's `regex`) as trees over classes of characters.

What a class holds is told exactly for ASCII; of all other characters only whether there may be any.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as made
from functools import lru_cache

import llguidance

from headrace.errors import RequestError

MAX_DEPTH = 100  # of brackets
MAX_NAMED = 100  # Unicode classes; the library needs some milliseconds for each
# Sets of characters are bits: one for each of ASCII, and one for all others.
HIGH = 1 << 128
ALL = (HIGH << 1) - 1
_CHARS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_HEX = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[xuU]\{[0-9a-fA-F]{1,6}\})"
_PIECE = re.compile(
    rf"""(?P<flags>\(\?(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?(?P<end>[:)]))
    |(?P<open>\((?:\?P?<\w+>)?)
    |(?P<close>\))
    |(?P<hex>{_HEX})
    |(?P<kind>\\(?:[dDwWsS]|[pP](?:\{{[^}}]*\}}|.)))
    |(?P<edge>[\^$]|\\[Az])
    |(?P<escape>\\.)
    |(?P<dot>\.)
    |(?P<sign>[|*+?]|\{{\d{{1,6}}(?:,\d{{0,6}})?\}})
    |(?P<char>.)""",
    re.VERBOSE | re.DOTALL,
)


def bits(chars: str) -> int:
    found = 0
    for char in chars:
        found |= 1 << min(ord(char), 128)
    return found


_SIGNS = frozenset("\\.+*?()|[]{}^$#&-~/")
ESCAPED = bits('"\\' + "".join(map(chr, range(32))))  # what JSON writes as an escape
_DIGIT = bits(string.digits)
_WORD = bits(string.ascii_letters + "_") | _DIGIT
_SPACE = bits("\t\n\v\f\r ")
_PRINT = bits("".join(map(chr, range(32, 127))))
_POSIX = {
    "alnum": _WORD & ~bits("_"),
    "alpha": bits(string.ascii_letters),
    "ascii": HIGH - 1,
    "blank": bits("\t "),
    "cntrl": bits("".join(map(chr, range(32))) + "\x7f"),
    "digit": _DIGIT,
    "graph": _PRINT & ~bits(" "),
    "lower": bits(string.ascii_lowercase),
    "print": _PRINT,
    "punct": bits(string.punctuation),
    "space": _SPACE,
    "upper": bits(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": bits(string.hexdigits),
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One character of a class. `text` spells the class as an expression; `fold`: either case."""

    text: str
    chars: int  # a set, where cases are folded of both
    fold: bool = False

    @property
    def escaped(self) -> int:
        return self.chars & ESCAPED

    @property
    def plain(self) -> int:
        return self.chars & ~ESCAPED


@dataclass(frozen=True, slots=True)
class Seq:
    parts: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    ways: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    node: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Name:
    """A rule or terminal of a Lark grammar."""

    name: str


Node = Leaf | Seq | Choice | Repeat | Name


def inner(node: Node) -> tuple[Node, ...]:
    match node:
        case Seq(parts):
            return parts
        case Choice(ways):
            return ways
        case Repeat(body):
            return (body,)
    return ()


def leaves(node: Node) -> Iterator[Leaf]:
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Leaf):
            yield one
        waiting += inner(one)


def seq(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Seq(tuple(parts))


def choice(ways: list[Node]) -> Node:
    return ways[0] if len(ways) == 1 else Choice(tuple(ways))


def char_leaf(char: str, *, fold: bool = False) -> Leaf:
    fold = fold and char.isalpha()
    text = f"\\{char}" if char in _SIGNS else char
    return Leaf(text, _folded(bits(char)) if fold else bits(char), fold)


def refused(what: str, field: str) -> RequestError:
    return RequestError(
        f"{what} in a tool's grammar",
        field=field,
        expected="an expression without it, where a model writes calls in JSON",
    )


def check_named(text: str, field: str) -> None:
    """Raises RequestError naming `field` if it speaks of too many Unicode classes."""
    if text.count(r"\p") + text.count(r"\P") > MAX_NAMED:
        raise refused(f"more than {MAX_NAMED} Unicode classes", field)


@dataclass(slots=True)
class _Group:
    """What is open: its ways so far, and the flags that hold in it."""

    fold: bool
    dotall: bool
    ways: list[list[Node]] = made(default_factory=lambda: [[]])

    def node(self) -> Node:
        return choice([seq(way) for way in self.ways])


def regex_tree(pattern: str, flags: str, field: str) -> Node:
    """Raises RequestError naming `field` for look-around, set operations in classes, flags other
    than i, m, s, u and U, bytes, and brackets nested too deep. Laziness means nothing."""
    if set(flags) - set("imsuU"):
        raise refused(f"the flags {flags}", field)
    check_named(pattern, field)
    groups = [_Group("i" in flags, "s" in flags)]
    at, before = 0, ""
    while at < len(pattern):
        group = groups[-1]
        if pattern[at] == "[":
            start = at
            at, chars = _class(pattern, at + 1, field)
            group.ways[-1].append(_class_leaf(pattern[start:at], chars, fold=group.fold))
            before = ""
            continue
        found = _PIECE.match(pattern, at)
        assert found is not None
        at = found.end()
        kind, text = found.lastgroup, found.group()
        if text == "?" and before == "sign":
            before = ""
        elif kind == "sign":
            _sign(group, text, field)
            before = "" if text == "|" else "sign"
        else:
            before = ""
            _piece(groups, found, field)
    if len(groups) != 1:
        raise refused("a bracket that is not closed", field)
    return groups[0].node()


def _sign(group: _Group, text: str, field: str) -> None:
    way = group.ways[-1]
    if text == "|":
        group.ways.append([])
        return
    if not way:
        raise refused(f"{text} behind nothing", field)
    if text in "*+?":
        least, most = int(text == "+"), 1 if text == "?" else None
    else:
        low, comma, high = text[1:-1].partition(",")
        least = int(low)
        most = int(high) if high else None if comma else least
    way[-1] = Repeat(way[-1], least, most)


def _piece(groups: list[_Group], found: re.Match[str], field: str) -> None:
    group = groups[-1]
    way, text = group.ways[-1], found.group()
    match found.lastgroup:
        case "flags":
            _flags(groups, found, field)
        case "open":
            if len(groups) > MAX_DEPTH:
                raise refused("a hundred brackets within each other", field)
            groups.append(_Group(group.fold, group.dotall))
        case "close":
            if len(groups) == 1:
                raise refused("a bracket that closes nothing", field)
            groups.pop()
            groups[-1].ways[-1].append(group.node())
        case "edge":  # the library allows them only where they mean nothing
            pass
        case "dot":
            chars = ALL if group.dotall else ALL & ~bits("\n")
            way.append(Leaf(r"[\s\S]" if group.dotall else r"[^\n]", chars))
        case "kind":
            way.append(_class_leaf(f"[{text}]", _kind(text), fold=group.fold))
        case "hex" | "char":
            _, char = _char(text, 0)
            way.append(char_leaf(char, fold=group.fold))
        case _:
            if text[1].isalnum() and text[1] not in _CHARS:
                raise refused(text, field)
            way.append(char_leaf(_CHARS.get(text[1], text[1]), fold=group.fold))


def _flags(groups: list[_Group], found: re.Match[str], field: str) -> None:
    """Of a group, or of what follows."""
    on, off = found["on"], found["off"] or ""
    unknown = set(on + off) - set("imsuU") | set(off) & {"u"}
    if unknown:
        raise refused(f"the flag {min(unknown)}", field)
    group = groups[-1]
    fold = ("i" in on or group.fold) and "i" not in off
    dotall = ("s" in on or group.dotall) and "s" not in off
    if found["end"] == ")":
        group.fold, group.dotall = fold, dotall
        return
    if len(groups) > MAX_DEPTH:
        raise refused("a hundred brackets within each other", field)
    groups.append(_Group(fold, dotall))


def _class_leaf(text: str, chars: int, *, fold: bool) -> Leaf:
    return Leaf(text, _folded(chars) if fold else chars, fold)


def _folded(chars: int) -> int:
    """With the other cases; U+212A and U+017F are those of k and s."""
    upper, lower = bits(string.ascii_uppercase), bits(string.ascii_lowercase)
    folded = chars | (chars & upper) << 32 | (chars & lower) >> 32
    if folded & bits("ks"):
        folded |= HIGH
    return folded | bits("ksKS") if folded & HIGH else folded


def _negated(chars: int) -> int:
    return ALL & ~chars | HIGH


def _kind(text: str) -> int:
    """Of `\\s`, `\\D`, `\\p{L}` and the like."""
    letter = text[1]
    if letter in "pP":
        return _by_name(text)
    chars = HIGH | {"d": _DIGIT, "w": _WORD, "s": _SPACE}[letter.lower()]
    return _negated(chars) if letter.isupper() else chars


@lru_cache(maxsize=1024)
def _by_name(text: str) -> int:
    """Of a Unicode class, whose names are many: what the library itself finds in it."""
    grammar = llguidance.LLMatcher.grammar_from_regex(text)
    fresh = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    if fresh.is_error():
        return ALL
    held = (c for c in range(128) if fresh.deep_copy().try_consume_tokens([c]) == 1)
    return HIGH | bits("".join(map(chr, held)))


def _class(text: str, at: int, field: str, depth: int = 0) -> tuple[int, int]:
    """The class whose bracket stands before `at`: the place behind it, and its characters."""
    if depth > MAX_DEPTH:
        raise refused("a hundred brackets within each other", field)
    negated = text.startswith("^", at)
    at += negated
    chars, first = 0, True
    while at < len(text) and (first or text[at] != "]"):
        if text[at : at + 2] in ("&&", "--", "~~"):
            raise refused(f"the operation {text[at : at + 2]} of classes", field)
        at, more = _entry(text, at, field, depth)
        chars, first = chars | more, False
    if at >= len(text):
        raise refused("a class that does not end", field)
    return at + 1, _negated(chars) if negated else chars


def _entry(text: str, at: int, field: str, depth: int) -> tuple[int, int]:
    """One entry of a class: a class by name or in brackets, a range, or a character."""
    posix = re.compile(r"\[:(\^?)([a-z]+):\]").match(text, at)
    if posix is not None and posix[2] in _POSIX:
        named = _POSIX[posix[2]]
        return posix.end(), _negated(named) if posix[1] else named
    if text[at] == "[":
        return _class(text, at + 1, field, depth + 1)
    found = _PIECE.match(text, at)
    assert found is not None
    if found.lastgroup == "kind":
        return found.end(), _kind(found.group())
    at, low = _char(text, at)
    high = low
    if text.startswith("-", at) and not text.startswith(("-]", "--"), at) and at + 1 < len(text):
        at, high = _char(text, at + 1)
    inside = bits("".join(c for c in map(chr, range(128)) if low <= c <= high))
    return at, inside | (HIGH if ord(high) > 127 else 0)


def _char(text: str, at: int) -> tuple[int, str]:
    """A character, as itself or as an escape."""
    found = re.compile(rf"{_HEX}|\\.|.", re.DOTALL).match(text, at)
    assert found is not None
    said = found.group()
    if len(said) > 2:
        return found.end(), chr(min(int(re.sub(r"[\\xuU{}]", "", said), 16), 0x10FFFF))
    return found.end(), _CHARS.get(said[1], said[1]) if len(said) == 2 else said
