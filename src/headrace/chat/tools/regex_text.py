"""Regular expressions of text inside a JSON string.

A character that JSON escapes is matched by its escape, in the one spelling of `json.dumps`.
"""

from __future__ import annotations

import re

from headrace.chat.tools.regex_tree import (
    ESCAPED,
    Choice,
    Leaf,
    Name,
    Node,
    Repeat,
    Seq,
    regex_tree,
)

_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def regex_in_json(pattern: str, flags: str, field: str) -> str:
    """The expression of the same texts inside a JSON string. Errors as `regex_tree`."""
    return in_json(regex_tree(pattern, flags, field))


def in_json(node: Node) -> str:
    """The expression of what `node` matches, inside a JSON string."""
    match node:
        case Leaf():
            ways = [text for text in (plain_text(node), escapes_text(node.escaped)) if text]
            return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
        case Seq(parts):
            return "".join(in_json(part) for part in parts)
        case Choice(ways):
            return f"(?:{'|'.join(in_json(way) for way in ways)})"
        case Repeat(body, least, most):
            return f"(?:{in_json(body)}){counts(least, most)}"
        case Name():
            raise AssertionError(node)


def counts(least: int, most: int | None) -> str:
    """The sign of a repetition."""
    signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return signs.get((least, most)) or f"{{{least},{'' if most is None else most}}}"


def plain_text(leaf: Leaf) -> str:
    """The expression of those of its characters that JSON leaves as they are; "" for none."""
    if not leaf.plain:
        return ""
    text = f'[{leaf.text}&&[^"\\\\\\x00-\\x1f]]' if leaf.escaped else leaf.text
    return f"(?i:{text})" if leaf.fold else text


def escapes_text(chars: int) -> str:
    """The expression of the escapes of those characters that have one; "" for none."""
    escaped = [chr(c) for c in range(128) if chars & ESCAPED & 1 << c]
    short = [re.escape(f"\\{_SHORT[char]}") for char in escaped if char in _SHORT]
    long = [f"{ord(char):02x}" for char in escaped if char not in _SHORT]
    ways = short + ([f"\\\\u00(?:{'|'.join(long)})"] if long else [])
    return f"(?:{'|'.join(ways)})" if len(ways) > 1 else "".join(ways)
