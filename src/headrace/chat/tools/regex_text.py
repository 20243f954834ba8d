"""Regular expressions (in the syntax of Rust's `regex`) of text inside a JSON string.

A character that JSON escapes is matched by its escape, in the one spelling of `json.dumps`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import llguidance

from headrace.errors import RequestError

_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
ESCAPED = frozenset({'"', "\\", *map(chr, range(32))})  # what JSON writes as an escape
_SPACE = frozenset("\t\n\v\f\r")
_QUOTED = frozenset('"\\')
_NONE: frozenset[str] = frozenset()
# Of classes by name: which of the escaped characters they hold.
_POSIX = {
    **dict.fromkeys(("alnum", "alpha", "digit", "lower", "upper", "word", "xdigit"), _NONE),
    **dict.fromkeys(("graph", "print", "punct"), _QUOTED),
    "ascii": ESCAPED,
    "blank": frozenset("\t"),
    "cntrl": ESCAPED - _QUOTED,
    "space": _SPACE,
}
_CHARS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_HEX = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[xuU]\{[0-9a-fA-F]{1,6}\})"
_PIECE = re.compile(
    rf"""(?P<flags>\(\?(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?(?P<end>[:)]))
    |(?P<open>\((?:\?P?<\w+>)?)
    |(?P<close>\))
    |(?P<hex>{_HEX})
    |(?P<kind>\\(?:[dDwWsS]|[pP](?:\{{[^}}]*\}}|.)))
    |(?P<escape>\\.)
    |(?P<dot>\.)
    |(?P<sign>[|*+?^$]|\{{\d*+,?+\d*+\}})
    |(?P<char>.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Members:
    """Of a class: its characters that JSON escapes, and whether it has others."""

    escaped: frozenset[str]
    others: bool = True

    def __or__(self, more: _Members) -> _Members:
        return _Members(self.escaped | more.escaped, self.others or more.others)

    def negated(self) -> _Members:
        return _Members(ESCAPED - self.escaped)


def char_in_json(char: str) -> str:
    """The expression of one character. An escape does not fold its case."""
    if char in ESCAPED:
        return f"(?-i:{_escape(char)})"
    return char if char.isalnum() or char in " \x7f" or ord(char) > 127 else f"\\{char}"


def regex_in_json(pattern: str, flags: str, field: str) -> str:
    """The expression of the same texts inside a JSON string. Raises RequestError naming `field`
    for set operations in classes and for flags other than i, m, s, u and U."""
    if "x" in flags:
        raise _refused("the flag x", field)
    dotall = ["s" in flags]
    out: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern[at] == "[":
            end, members = _class(pattern, at + 1, field)
            out.append(_either(pattern[at:end], members))
            at = end
            continue
        found = _PIECE.match(pattern, at)
        assert found is not None
        out.append(_piece(found, dotall, field))
        at = found.end()
    return "".join(out)


@dataclass(frozen=True, slots=True)
class Escapes:
    """Of a terminal: the characters that JSON escapes with which it may begin, and those with which
    it may go on. `run`: it is characters of one class, so it may go on with the ones as well as
    with the others."""

    first: frozenset[str] = _NONE
    later: frozenset[str] = _NONE
    run: bool = False


def regex_escapes(pattern: str, flags: str, field: str) -> Escapes:
    """What the expression may hold; rather too much than too little. Errors as `regex_in_json`."""
    held, signs = list[frozenset[str]](), list[str]()
    at = 0
    while at < len(pattern):
        if pattern[at] == "[":
            at, members = _class(pattern, at + 1, field)
            held.append(members.escaped)
            continue
        found = _PIECE.match(pattern, at)
        assert found is not None
        at = found.end()
        if found.lastgroup == "sign":
            signs.append(found.group())
        elif found.lastgroup not in ("open", "close", "flags"):
            held.append(_escaped_of(found, dotall="s" in flags or "(?" in pattern))
    together = frozenset[str]().union(*held)
    one_class = len(held) == 1 and "(?" not in pattern
    if one_class and signs in ([], ["?"]):
        return Escapes(together)
    run = one_class and len(signs) == 1 and signs[0] not in "|^$"
    return Escapes(together, together, run)


def _escaped_of(found: re.Match[str], *, dotall: bool) -> frozenset[str]:
    text = found.group()
    match found.lastgroup:
        case "dot":
            return ESCAPED if dotall else ESCAPED - {"\n"}
        case "kind":
            return _kind(text).escaped
        case "hex":
            text = chr(min(int(re.sub(r"[\\xuU{}]", "", text), 16), 0x10FFFF))
        case "escape":
            text = _CHARS.get(text[1], text[1])
    return ESCAPED & {text}


def _piece(found: re.Match[str], dotall: list[bool], field: str) -> str:
    text = found.group()
    match found.lastgroup:
        case "flags":  # of a group, or of what follows
            on, off = found["on"], found["off"] or ""
            unknown = set(on + off) - set("imsuU")
            if unknown:
                raise _refused(f"the flag {min(unknown)}", field)
            if found["end"] == ":":
                dotall.append(dotall[-1])
            dotall[-1] = ("s" in on or dotall[-1]) and "s" not in off
        case "open":
            dotall.append(dotall[-1])
        case "close":
            if len(dotall) > 1:
                dotall.pop()
        case "dot":
            everything = _Members(ESCAPED if dotall[-1] else ESCAPED - {"\n"})
            return _either(r"[\s\S]" if dotall[-1] else r"[^\n]", everything)
        case "kind":
            members = _kind(text)
            return _either(f"[{text}]", members) if members.escaped else text
        case "hex":
            return char_in_json(chr(int(re.sub(r"[\\xuU{}]", "", text), 16)))
        case "escape":
            if text[1] in _CHARS or not text[1].isalnum():
                return char_in_json(_CHARS.get(text[1], text[1]))
        case "char":
            return char_in_json(text)
    return text


def _escape(char: str) -> str:
    if char in _SHORT:
        return re.escape(f"\\{_SHORT[char]}")
    return f"\\\\u00{ord(char):02x}"


def _either(text: str, members: _Members) -> str:
    """The class `text`, its escaped characters as escapes."""
    if not members.escaped:
        return text
    short = [_escape(char) for char in sorted(members.escaped & _SHORT.keys())]
    long = [f"{ord(char):02x}" for char in sorted(members.escaped - _SHORT.keys())]
    ways = short + ([f"\\\\u00(?:{'|'.join(long)})"] if long else [])
    plain = [f'[{text}&&[^"\\\\\\x00-\\x1f]]'] if members.others else []
    return f"(?:{'|'.join((*plain, f'(?-i:{chr(124).join(ways)})'))})"


def _kind(text: str) -> _Members:
    """Of `\\s`, `\\D`, `\\p{L}` and the like."""
    letter = text[1]
    if letter in "sS":
        members = _Members(_SPACE)
    elif letter in "pP":
        return _Members(_escaped_by_name(text))
    else:
        members = _Members(_NONE)
    return members.negated() if letter.isupper() else members


@lru_cache(maxsize=1024)
def _escaped_by_name(text: str) -> frozenset[str]:
    """Of a Unicode class, whose names are many: what the library itself finds in it."""
    grammar = llguidance.LLMatcher.grammar_from_regex(text)
    fresh = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    if fresh.is_error():
        return _NONE
    return frozenset(c for c in ESCAPED if fresh.deep_copy().try_consume_tokens([ord(c)]) == 1)


def _class(text: str, at: int, field: str) -> tuple[int, _Members]:
    """The class whose bracket stands before `at`: the place behind it, and its members."""
    negated = text.startswith("^", at)
    at += negated
    members, first = _Members(_NONE, others=False), True
    while at < len(text) and (first or text[at] != "]"):
        if text[at : at + 2] in ("&&", "--", "~~"):
            raise _refused(f"the operation {text[at : at + 2]} of classes", field)
        at, more = _entry(text, at, field)
        members, first = members | more, False
    if at >= len(text):
        raise _refused("a class that does not end", field)
    return at + 1, members.negated() if negated else members


def _entry(text: str, at: int, field: str) -> tuple[int, _Members]:
    """One entry of a class: a class by name or in brackets, a range, or a character."""
    posix = re.compile(r"\[:(\^?)([a-z]+):\]").match(text, at)
    if posix is not None and posix[2] in _POSIX:
        named = _Members(_POSIX[posix[2]])
        return posix.end(), named.negated() if posix[1] else named
    if text[at] == "[":
        return _class(text, at + 1, field)
    found = _PIECE.match(text, at)
    assert found is not None
    if found.lastgroup == "kind":
        return found.end(), _kind(found.group())
    at, low = _char(text, at)
    high = low
    if text.startswith("-", at) and not text.startswith(("-]", "--"), at) and at + 1 < len(text):
        at, high = _char(text, at + 1)
    inside = frozenset(c for c in ESCAPED if low <= c <= high)
    return at, _Members(inside, others=len(inside) <= ord(high) - ord(low))


def _char(text: str, at: int) -> tuple[int, str]:
    """A character of a class, as itself or as an escape."""
    found = re.compile(rf"{_HEX}|\\.|.", re.DOTALL).match(text, at)
    assert found is not None
    said = found.group()
    if len(said) > 2:
        return found.end(), chr(min(int(re.sub(r"[\\xuU{}]", "", said), 16), 0x10FFFF))
    return found.end(), _CHARS.get(said[1], said[1]) if len(said) == 2 else said


def _refused(what: str, field: str) -> RequestError:
    return RequestError(
        f"{what} in a tool's grammar",
        field=field,
        expected="an expression without it, where a model writes calls in JSON",
    )
