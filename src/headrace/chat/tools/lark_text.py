"""Lark grammars of plain text, rewritten so that they hold for the text inside a JSON string.

The text they accept is what `json.dumps` writes of the original's, without the quotation marks.
Rules, names and operators stay; only string and regular expression literals change.
"""

from __future__ import annotations

import json
import re

from headrace.chat.tools.regex_text import (
    ESCAPED,
    Escapes,
    char_in_json,
    regex_escapes,
    regex_in_json,
)
from headrace.errors import RequestError

_STRING = r'"(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|[^"\\\x00-\x1f\x7f])*"'
_TOKEN = re.compile(
    rf"""(?P<comment>(?:\#|//)[^\n]*)
    |(?P<range>{_STRING}[ \t]*\.\.[ \t]*{_STRING})
    |(?P<string>{_STRING}i?)
    |(?P<regexp>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<import>%import[ \t][^\n]*)
    |(?P<ignore>%ignore\b)
    |(?P<refused>%[a-z_]*|@[\w{{}}-]*|<[^<>\s]*>?|["/].{{0,20}})
    |(?P<plain>[^"/%<@\#]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_IMPORT = re.compile(
    r"%import\s+common\s*(?:\.\s*(?P<name>\w+)\s*(?:->\s*(?P<alias>\w+))?|\((?P<names>[\w\s,]+)\))"
    r"\s*(?:(?:\#|//).*)?"
)
# Of a grammar without its literals (NUL stands for one): where the definition of a name begins,
# and a terminal's right side that is nothing but a choice of terminals.
_HEAD = re.compile(r"\b(\w+)(?:\.-?\d+)?(\[[^\]]*\])?\s*:")
_CHOICE = re.compile(r"[\s|]*(?:\0|\w+)(?:\s*\|\s*(?:\0|\w+))*\s*")
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
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
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


def lark_in_json(grammar: str, field: str) -> str:
    """The grammar of the same texts inside a JSON string. Raises RequestError naming `field` for
    what cannot be rewritten."""
    checked_lark(grammar, field)
    return "".join(_rewritten(token, field) for token in _TOKEN.finditer(grammar))


def exact_in_json(grammar: str, field: str) -> bool:
    """Whether `lark_in_json` surely accepts every text of `grammar`. Errors as there.

    A terminal takes in all it can: one that may go on with an escape takes the backslash of any
    escape, and then a text in which the next terminal begins there does not fit. That cannot be
    where no terminal begins with an escape, or none goes on with one, or only runs of a class that
    has every character with which one may begin.
    """
    escapes: list[Escapes] = []
    skeleton: list[str] = []
    for token in _TOKEN.finditer(grammar):
        kind = token.lastgroup
        escapes += _escapes(token, field)
        skeleton.append({"plain": token.group(), "ignore": "\n_IGNORED:"}.get(kind or "", "\0"))
        if kind in ("comment", "import"):
            skeleton[-1] = "\n" if kind == "comment" else "\n_imported:"
    first = frozenset[str]().union(*(found.first for found in escapes))
    if not first and not any(found.later for found in escapes):
        return True
    parts = _HEAD.split("".join(skeleton))
    names, attributes, bodies = parts[1::3], parts[2::3], parts[3::3]
    terminals = (
        body
        for name, attribute, body in zip(names, attributes, bodies, strict=True)
        if attribute or name.lstrip("_")[:1].isupper()
    )
    composed = any(_CHOICE.fullmatch(body) is None for body in terminals)
    if composed or any(sign in part for part in skeleton for sign in "&~"):
        return False
    return not first or all(
        not found.later or (found.run and first <= found.later) for found in escapes
    )


def _escapes(token: re.Match[str], field: str) -> list[Escapes]:
    """Of the terminals that the token is."""
    text = token.group()
    match token.lastgroup:
        case "range":
            low, high = (json.loads(found) for found in re.findall(_STRING, text))
            return [Escapes(frozenset(c for c in ESCAPED if low <= c <= high))]
        case "string":
            value = json.loads(text.removesuffix("i"))
            return [Escapes(ESCAPED & set(value[:1]), ESCAPED & set(value[1:]))]
        case "regexp":
            pattern, flags = text[1:].rsplit("/", 1)
            return [regex_escapes(pattern, flags, field)]
        case "import":
            names = set(re.findall(r"\w+", text)) & COMMON.keys()
            return [regex_escapes(COMMON[name], "", field) for name in sorted(names)]
    return []


def _rewritten(token: re.Match[str], field: str) -> str:
    text = token.group()
    match token.lastgroup:
        case "comment":
            return ""
        case "range":
            low, high = (json.loads(found) for found in re.findall(_STRING, text))
            if len(low) != 1 or len(high) != 1:
                raise RequestError(f"{text} in a grammar", field=field, expected="two characters")
            return _literal(f"[{_in_class(low)}-{_in_class(high)}]", field)
        case "string":
            return _string(text)
        case "regexp":
            pattern, flags = text[1:].rsplit("/", 1)
            return f"/{regex_in_json(pattern, flags, field)}/{flags}"
        case "import":
            return _import(text, field)
    return text


def _string(text: str) -> str:
    value = json.loads(text.removesuffix("i"))
    if text.endswith("i") and value:
        return f"/(?i:{''.join(char_in_json(char) for char in value)})/"
    return json.dumps(json.dumps(value, ensure_ascii=False)[1:-1], ensure_ascii=False)


def _import(text: str, field: str) -> str:
    found = _IMPORT.fullmatch(text.strip())
    names = [] if found is None else re.findall(r"\w+", found["names"] or found["name"])
    if found is None or not set(names) <= COMMON.keys():
        raise RequestError(
            f"{text.strip()!r} in a grammar", field=field, expected="a terminal of `common`"
        )
    lines = (f"{found['alias'] or name}: {_literal(COMMON[name], field)}" for name in names)
    return "\n".join(lines)


def _literal(regex: str, field: str) -> str:
    return f"/{regex_in_json(regex, '', field)}/"


def _in_class(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"
