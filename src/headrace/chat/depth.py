"""How many levels a compiler of grammars must descend, found without descending.

llguidance follows rules and references by recursion and has no bound on it: a chain of about 2000
levels overflows a stack of 8 MB. The depth here is never less than the one it reaches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from headrace.errors import RequestError

MAX_CHAIN = 500
# Of a JSON value that is written again: what can just be read cannot be, some calls further down.
MAX_LEVELS = 256
_PIECE = re.compile(
    r"""(?P<text>(?:\#|//)[^\n]*+|"(?:\\.|[^"\\\n])*+"?+|/(?:\\.|[^/\\])*+/?+|::)
    |(?P<json>%json\b\s*+)
    |(?P<line>\n)
    |(?P<word>\w++(?:-++\w++)*+)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


def check_rules(grammar: str, field: str) -> None:
    """Raises RequestError naming `field` if rules of a Lark grammar lead too deep."""
    if (depth := rules_depth(grammar)) > MAX_CHAIN:
        raise RequestError(
            f"a grammar whose rules lead {depth} levels deep into each other",
            field=field,
            expected=f"at most {MAX_CHAIN}, where rules that are recursive together count each",
        )


def check_references(schema: Mapping[str, Any], field: str) -> None:
    """Raises RequestError naming `field` if references of a JSON schema lead too deep."""
    if (depth := schema_depth(schema)) > MAX_CHAIN:
        raise RequestError(
            f"a schema whose references lead {depth} levels deep",
            field=field,
            expected=f"at most {MAX_CHAIN}, where definitions recursive together count each",
        )


def rules_depth(grammar: str) -> int:
    """Levels of rules, brackets and schemas. A rule begins a line, as llguidance has it."""
    weights: dict[Hashable, int] = {None: 0}
    after: dict[Hashable, set[Hashable]] = {None: set()}
    head: Hashable = None
    words: list[str] = []  # of this line
    headed = False  # this line
    nesting = outer = at = 0
    grammar += "\n"
    while found := _PIECE.match(grammar, at):
        at = found.end()
        match found.lastgroup, found.group():
            case "json", _:
                value, at = _json_at(grammar, at)
                weights[head] = max(weights[head], nesting + 1 + schema_depth(value))
            case "word", word:
                words.append(word)
            case "line", _:
                after[head].update(words)
                words, headed, outer = [], False, nesting
            case _, ":" if words and not headed and nesting == outer:
                head, headed = words[0], True
                after.setdefault(head, set())
                weights[head] = max(weights.get(head, 0), nesting + 1)
            case _, "(" | "[" | "{":
                nesting += 1
                weights[head] = max(weights[head], nesting + 1)
            case _, ")" | "]" | "}":
                nesting = max(nesting - 1, 0)
    after[None] = set(weights)
    return _longest(weights, {rule: to & weights.keys() for rule, to in after.items()}, None)


def schema_depth(schema: Any) -> int:
    """Levels of containers, behind references as well."""
    found = [value for value in _containers(schema) if isinstance(value, Mapping)]
    targets = {
        ref: _target(schema, ref) for value in found if isinstance(ref := value.get("$ref"), str)
    }
    # Names given by `$id` and `$anchor` are not looked up: as if each definition led to each.
    named = any("$id" in value for value in found if value is not schema)
    starts = {id(schema), *map(id, targets.values())}
    weights: dict[Hashable, int] = dict.fromkeys(starts, 0)
    after: dict[Hashable, set[Hashable]] = {start: set() for start in starts}
    waiting = [(schema, id(schema), 1, 1)]
    height = 1
    while waiting:
        value, part, depth, level = waiting.pop()
        height = max(height, level)
        if id(value) in starts and id(value) != part:
            after[part].add(id(value))
            part, depth = id(value), 1
        weights[part] = max(weights[part], depth)
        if isinstance(value, Mapping) and isinstance(ref := value.get("$ref"), str):
            after[part].add(id(targets[ref]))
        waiting += [(inner, part, depth + 1, level + 1) for inner in _inner(value)]
    if named or None in targets.values():
        return height * (len(targets) + 1)
    return _longest(weights, after, id(schema))


def height(value: Any) -> int:
    """Levels of containers in a JSON value."""
    levels, level = 0, _inner([value])
    while level:
        levels += 1
        level = [inner for one in level for inner in _inner(one)]
    return levels


def _target(schema: Any, ref: str) -> Any:
    """What a JSON pointer leads to (RFC 6901), None for any other reference."""
    at = schema
    if not ref.startswith("#"):
        return None
    for n, part in enumerate(unquote(ref[1:]).split("/")):
        name = part.replace("~1", "/").replace("~0", "~")
        if n == 0 and not part:
            continue
        if isinstance(at, Mapping):
            at = at.get(name)
        elif isinstance(at, list | tuple) and name.isdecimal() and int(name) < len(at):
            at = at[int(name)]
        else:
            return None
    return at


def _containers(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += _inner(one)


def _inner(value: Any) -> list[Any]:
    """The containers in one."""
    values: Any = ()
    if isinstance(value, Mapping):
        values = value.values()
    elif isinstance(value, list | tuple):
        values = value
    return [inner for inner in values if isinstance(inner, Mapping | list | tuple)]


def _json_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at `at` and its end; what is no JSON the compiler refuses."""
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, at


def _longest(
    weights: Mapping[Hashable, int], after: Mapping[Hashable, set[Hashable]], start: Hashable
) -> int:
    """The weight of the heaviest path, at least: nodes on common cycles all count.

    Tarjan, Depth-First Search and Linear Graph Algorithms, 1972, without recursion.
    """
    index: dict[Hashable, int] = {start: 0}
    low = {start: 0}
    waiting = [start]  # those whose group is not complete
    done: dict[Hashable, int] = {}
    path = [(start, iter(after[start]))]
    while path:
        node, following = path[-1]
        for to in following:
            if to not in index:
                index[to] = low[to] = len(index)
                waiting.append(to)
                path.append((to, iter(after[to])))
                break
            if to not in done:
                low[node] = min(low[node], index[to])
        else:
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[node])
            if low[node] == index[node]:
                group = [waiting.pop()]
                while group[-1] != node:
                    group.append(waiting.pop())
                below = (done[to] for one in group for to in after[one] if to in done)
                heaviest = max(below, default=0) + sum(weights[one] for one in group)
                done |= dict.fromkeys(group, heaviest)
    return done[start]
