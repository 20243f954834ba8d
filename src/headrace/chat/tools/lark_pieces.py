"""A terminal cut into pieces, for the inside of a JSON string.

Each piece is either one escape or an expression without any, and no two of the latter are side by
side: a piece ends where its text does, whatever else may stand there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from headrace.chat.tools.regex_text import counts, escapes_text, plain_text
from headrace.chat.tools.regex_tree import Choice, Leaf, Node, Repeat, Seq, leaves

MAX_WAYS = 600  # between the places of escapes in one terminal


class TooManyPieces(ValueError):
    """The terminal, written out, would be too long."""


@dataclass(frozen=True, slots=True)
class _Ways:
    """The expressions without escapes by which one gets through a node (None: in no way), from
    its start to a place of escapes, from there to its end, and from place to place."""

    through: str | None
    places: dict[int, int] = field(default_factory=dict)  # what characters' escapes stand there
    to: dict[int, str] = field(default_factory=dict)
    out: dict[int, str] = field(default_factory=dict)
    between: dict[tuple[int, int], str] = field(default_factory=dict)


def pieces(name: str, node: Node) -> Iterator[str]:
    """Rules in Lark: `name` is a text of the terminal `node`. Raises TooManyPieces.

    The rule `name_k` is what comes before, and the escape at, the place k; it recurs at its left
    end, so that a long text costs no more at its end than at its start.
    """
    ways = _ways(node, count())
    for place, chars in ways.places.items():
        heads = {"": ways.to[place]} if place in ways.to else {}
        heads |= {f"{name}_{k}": text for (k, to), text in ways.between.items() if to == place}
        before = _alternatives(heads)
        begun = "" if before == '""' else f"({before}) "
        yield f"{name}_{place}: {begun}/{escapes_text(chars)}/"
    heads = {} if ways.through is None else {"": ways.through}
    heads |= {f"{name}_{k}": text for k, text in ways.out.items()}
    yield f"{name}: {_alternatives(heads)}"


def _alternatives(heads: dict[str, str]) -> str:
    """Each head with the expression behind it."""
    if not heads:
        raise TooManyPieces
    behind: dict[str, list[str]] = {}
    for head, text in heads.items():
        behind.setdefault(text, []).append(head or '""')
    ways = []
    for text, before in behind.items():
        first = before[0] if len(before) == 1 else f"({' | '.join(before)})"
        last = f"/{text}/" if text else ""
        ways.append(last if last and first == '""' else f"{first} {last}".strip())
    return " | ".join(ways)


def _ways(node: Node, numbers: count[int]) -> _Ways:
    match node:
        case Leaf() if node.escaped:
            k = next(numbers)
            return _Ways(plain_text(node) or None, {k: node.escaped}, {k: ""}, {k: ""})
        case Leaf():
            return _Ways(plain_text(node) or None)
        case Seq(parts):
            whole = _Ways("")
            for part in parts:
                whole = _then(whole, _ways(part, numbers))
            return whole
        case Choice(ways):
            return _either([_ways(way, numbers) for way in ways])
        case Repeat(body, least, most):
            return _repeated(body, least, most, numbers)
    raise AssertionError(node)


def _repeated(body: Node, least: int, most: int | None, numbers: count[int]) -> _Ways:
    if not any(leaf.escaped for leaf in leaves(body)):
        through = _ways(body, numbers).through
        if through:
            through = f"(?:{through}){counts(least, most)}"
        return _Ways("" if through is None and not least else through)
    if (least if most is None else most) > MAX_WAYS:
        raise TooManyPieces
    if most is None:
        rest = _looped(_ways(body, numbers), least=min(least, 1))
    else:
        rest = _Ways("")
        for _ in range(most - least):
            rest = _either([_then(_ways(body, numbers), rest), _Ways("")])
    for _ in range(least - 1 if most is None else least):
        rest = _then(_ways(body, numbers), rest)
    return rest


def _looped(one: _Ways, least: int) -> _Ways:
    turns = f"(?:{one.through})*" if one.through else ""
    through = one.through if least else ""
    if one.through:
        through = f"(?:{one.through}){counts(least, None)}"
    between = dict(one.between)
    for k, out in one.out.items():
        for to, into in one.to.items():
            way = out + turns + into
            between[k, to] = _or(between.get((k, to)), way)
    return _checked(
        _Ways(
            through,
            one.places,
            {k: turns + into for k, into in one.to.items()},
            {k: out + turns for k, out in one.out.items()},
            between,
        )
    )


def _then(a: _Ways, b: _Ways) -> _Ways:
    to, out = dict(a.to), dict(b.out)
    if a.through is not None:
        to |= {k: a.through + into for k, into in b.to.items()}
    if b.through is not None:
        out |= {k: rest + b.through for k, rest in a.out.items()}
    between = {**a.between, **b.between}
    for k, rest in a.out.items():
        between |= {(k, to_): rest + into for to_, into in b.to.items()}
    both = a.through is not None and b.through is not None
    through = f"{a.through}{b.through}" if both else None
    return _checked(_Ways(through, {**a.places, **b.places}, to, out, between))


def _either(ways: list[_Ways]) -> _Ways:
    """Their places differ."""
    whole = _Ways(None)
    for way in ways:
        through = way.through if whole.through is None else _or(way.through, whole.through)
        whole = _Ways(
            through,
            whole.places | way.places,
            whole.to | way.to,
            whole.out | way.out,
            whole.between | way.between,
        )
    return whole


def _or(a: str | None, b: str) -> str:
    if a is None or a == b:
        return b
    if not a or not b:
        return f"(?:{a or b})?"
    return f"(?:{a}|{b})"


def _checked(ways: _Ways) -> _Ways:
    if len(ways.between) > MAX_WAYS or sum(map(len, ways.between.values())) > 100 * MAX_WAYS:
        raise TooManyPieces
    return ways
