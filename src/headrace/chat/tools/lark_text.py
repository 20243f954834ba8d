"""Lark grammars of plain text, rewritten so that they hold for the text inside a JSON string.

The text they accept is what `json.dumps` writes of the original's, without the quotation marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from headrace.chat.depth import MAX_CHAIN, rules_depth
from headrace.chat.tools.lark_follow import Places, TooLarge, keeps_texts, places_of
from headrace.chat.tools.lark_pieces import TooManyPieces, pieces
from headrace.chat.tools.lark_tree import Lark, checked_lark, lark_tree
from headrace.chat.tools.regex_text import counts, in_json
from headrace.chat.tools.regex_tree import (
    ESCAPED,
    Choice,
    Name,
    Node,
    Repeat,
    Seq,
    leaves,
)
from headrace.errors import RequestError

_IGNORED = "ignored"


def lark_in_json(grammar: str, field: str) -> str | None:
    """The grammar of the same texts inside a JSON string; None where none is known that surely
    accepts every one of them. Raises RequestError naming `field` as `checked_lark`.

    A terminal takes in all it can: one that may go on with an escape takes the backslash of any
    escape, and then a text in which the next terminal begins there does not fit. That cannot be
    where no terminal begins with an escape or none goes on with one. Elsewhere terminals become
    rules over pieces, if that does not change what is accepted.
    """
    checked_lark(grammar, field)
    try:
        lark = lark_tree(grammar, field)
        trees = lark.terminals.values()
        if not any(leaf.escaped for tree in trees for leaf in leaves(tree)):
            return grammar
        places = {name: places_of(tree) for name, tree in lark.terminals.items()}
        if _is_whole(places.values()):
            return "\n".join(_whole(lark))
        if not keeps_texts(lark, places):
            return None
        made = "\n".join(_cut(lark))
    except (RequestError, TooLarge, TooManyPieces):
        return None
    return made if rules_depth(made) <= MAX_CHAIN else None


def _is_whole(terminals: Iterable[Places]) -> bool:
    first = later = 0
    for places in terminals:
        first |= places.begins
        for after in places.after:
            for k in after:
                later |= places.chars[k]
    return not first & ESCAPED or not later & ESCAPED


def _whole(lark: Lark) -> Iterator[str]:
    """Lines of the grammar, each terminal as it is."""
    names = {name: f"T{k}" for k, name in enumerate(lark.terminals)}
    yield from _rules(lark, names)
    for name, tree in lark.terminals.items():
        yield _line(names[name], in_json(tree))
    for name in lark.ignored:
        yield f"%ignore {names[name]}"


def _cut(lark: Lark) -> Iterator[str]:
    """Lines of the grammar, each terminal that holds an escape in pieces. What may be ignored is
    named behind each terminal: within one it may not."""
    behind = f" {_IGNORED}*" if lark.ignored else ""
    names = {name: f"t{k}" for k, name in enumerate(lark.terminals)}
    yield from _rules(lark, names if not behind else {k: f"{v}_i" for k, v in names.items()})
    for name, tree in lark.terminals.items():
        if any(leaf.escaped for leaf in leaves(tree)):
            yield from pieces(names[name], tree)
        else:
            yield _line(names[name], in_json(tree))
        if behind and name not in lark.ignored:
            yield f"{names[name]}_i: {names[name]}{behind}"
    if behind:
        yield f"{_IGNORED}: {' | '.join(names[name] for name in lark.ignored)}"


def _rules(lark: Lark, terminals: Mapping[str, str]) -> Iterator[str]:
    names = {name: f"r{k}" for k, name in enumerate(lark.rules)}
    yield f"start: {names['start']}"
    known = {**names, **terminals}
    for name, body in lark.rules.items():
        yield f"{names[name]}: {_text(body, known)}"


def _line(name: str, expression: str) -> str:
    return f"{name}: {f'/{expression}/' if expression else json.dumps('')}"


def _text(node: Node, names: Mapping[str, str]) -> str:
    match node:
        case Name(name):
            return names[name]
        case Seq(parts):
            return f"({' '.join(_text(part, names) for part in parts)})" if parts else '""'
        case Choice(ways):
            return f"({' | '.join(_text(way, names) for way in ways)})"
        case Repeat(body, least, most):
            text = _text(body, names)
            text = f"({text})" if isinstance(body, Repeat) else text
            return text + counts(least, most)
    raise AssertionError(node)
