"""Which terminals of a Lark grammar may stand behind each other, and whether cutting them into
pieces changes what is accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.chat.tools.lark_tree import Lark
from headrace.chat.tools.regex_tree import ESCAPED, Choice, Leaf, Name, Node, Repeat, Seq

MAX_TERMINALS = 160
MAX_ROUNDS = 60  # until nothing changes: as many as rules lead into each other
MAX_STEPS = 30_000  # of two terminals at once
_IGNORED = "%ignored"
_COPIES = 3  # of what is repeated a number of times; beyond, as if at least so often


class TooLarge(ValueError):
    """The grammar takes too long to look through."""


@dataclass(slots=True)
class Places:
    """The characters of an expression by their places in it (Glushkov, 1961)."""

    chars: list[int] = field(default_factory=list)  # sets
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    after: list[set[int]] = field(default_factory=list)
    empty: bool = True  # whether it matches the empty text

    @property
    def is_run(self) -> bool:
        """Of one class: whatever follows each place is what may begin it."""
        every = set(range(len(self.chars)))
        return self.first == self.last == every and all(after == every for after in self.after)

    @property
    def begins(self) -> int:
        """With which characters."""
        return _union(self.chars[k] for k in self.first)


def places_of(node: Node) -> Places:
    """Never fewer texts than the node's: a count above three is a loop."""
    found = Places()
    found.first, found.last, found.empty = _place(node, found)
    return found


def _place(node: Node, made: Places) -> tuple[set[int], set[int], bool]:
    match node:
        case Leaf():
            k = len(made.chars)
            made.chars.append(node.chars)
            made.after.append(set())
            return {k}, {k}, False
        case Seq(parts):
            return _in_turn([_place(part, made) for part in parts], made)
        case Choice(ways):
            firsts, lasts, empty = set[int](), set[int](), False
            for way in ways:
                first, last, nothing = _place(way, made)
                firsts, lasts, empty = firsts | first, lasts | last, empty or nothing
            return firsts, lasts, empty
        case Repeat(body, least, most):
            loops = most is None or most > _COPIES
            needed = min(least, _COPIES)
            copies = [_place(body, made) for _ in range(max(needed, 1) if loops else most or 0)]
            if loops:
                first, last, _ = copies[-1]
                for k in last:
                    made.after[k] |= first
            copies = [(f, t, empty or n >= needed) for n, (f, t, empty) in enumerate(copies)]
            return _in_turn(copies, made)
    raise AssertionError(node)


def _in_turn(
    parts: Iterable[tuple[set[int], set[int], bool]], made: Places
) -> tuple[set[int], set[int], bool]:
    firsts, lasts, empty = set[int](), set[int](), True
    for first, last, nothing in parts:
        for k in lasts:
            made.after[k] |= first
        firsts = firsts | first if empty else firsts
        lasts = lasts | last if nothing else last
        empty = empty and nothing
    return firsts, lasts, empty


Begins = dict[str, tuple[set[str], bool]]  # of names: with which terminals, and whether empty


def followers(lark: Lark, places: Mapping[str, Places]) -> tuple[dict[str, set[str]], set[str]]:
    """Of each terminal those that may stand behind it, and those with which a text may begin.
    Raises TooLarge."""
    rules = dict(lark.rules)
    if lark.ignored:
        rules = {name: _with_ignored(body, places) for name, body in rules.items()}
        rules[_IGNORED] = Repeat(Choice(tuple(map(Name, lark.ignored))), 0, None)
    begins: Begins = {name: ({name}, found.empty) for name, found in places.items()}
    begins |= {name: (set[str](), False) for name in rules}
    behind = {name: set[str]() for name in begins}
    for _ in range(MAX_ROUNDS):
        size = sum(len(first) + empty for first, empty in begins.values())
        begins |= {name: _begins(body, begins) for name, body in reversed(rules.items())}
        if size == sum(len(first) + empty for first, empty in begins.values()):
            break
    else:
        raise TooLarge
    for _ in range(MAX_ROUNDS):
        size = sum(map(len, behind.values()))
        for name, body in rules.items():
            _follow(body, behind[name], begins, behind)
        if size == sum(map(len, behind.values())):
            return {name: behind[name] for name in places}, begins["start"][0]
    raise TooLarge


def _with_ignored(node: Node, terminals: Iterable[str]) -> Node:
    match node:
        case Name(name) if name in terminals:
            return Seq((node, Name(_IGNORED)))
        case Seq(parts):
            return Seq(tuple(_with_ignored(part, terminals) for part in parts))
        case Choice(ways):
            return Choice(tuple(_with_ignored(way, terminals) for way in ways))
        case Repeat(body, least, most):
            return Repeat(_with_ignored(body, terminals), least, most)
    return node


def _begins(node: Node, begins: Begins) -> tuple[set[str], bool]:
    match node:
        case Name(name):
            return begins[name]
        case Choice(ways):
            found = [_begins(way, begins) for way in ways]
            return set[str]().union(*(first for first, _ in found)), any(e for _, e in found)
        case Repeat(body, least, _):
            first, empty = _begins(body, begins)
            return first, empty or not least
        case Seq(parts):
            firsts = set[str]()
            for part in parts:
                first, empty = _begins(part, begins)
                firsts |= first
                if not empty:
                    return firsts, False
            return firsts, True
    raise AssertionError(node)


def _follow(node: Node, after: set[str], begins: Begins, behind: dict[str, set[str]]) -> None:
    """Tells `behind` what stands behind the names in `node`, behind which `after` stands."""
    match node:
        case Name(name):
            behind[name] |= after
        case Choice(ways):
            for way in ways:
                _follow(way, after, begins, behind)
        case Repeat(body, _, most):
            again = set[str]() if most == 1 else _begins(body, begins)[0]
            _follow(body, after | again, begins, behind)
        case Seq(parts):
            for part in reversed(parts):
                _follow(part, after, begins, behind)
                first, empty = _begins(part, begins)
                after = after | first if empty else first


def keeps_texts(lark: Lark, places: Mapping[str, Places]) -> bool:
    """Whether the grammar of pieces accepts the same texts as `lark`, but for what is ignored at
    the very end. `places`: of each terminal. Raises TooLarge.

    A piece ends at each escape, and with it a terminal that might go on there; if what may stand
    behind such a terminal could go on likewise, both were followed, where the original goes on. So
    that is looked for: a text of one terminal, with which another that may stand in its place, or
    the same, may go on by a character that may also begin what stands behind the first; and that
    character is escaped or stands behind one that is. A run that is ignored may be ignored again:
    that changes nothing. Of a text that may be ignored and may be a terminal the original takes
    the former only.
    """
    if len(lark.terminals) > MAX_TERMINALS:
        raise TooLarge
    behind, first = followers(lark, places)
    begins = {name: _union(places[to].begins for to in behind[name]) for name in places}
    together = _Together(places)
    together.add(first, first)
    steps = 0
    while together.waiting:
        name, other = together.waiting.pop()
        next_ = begins[name]
        if name == other in lark.ignored and places[name].is_run:
            next_ = _union(places[to].begins for to in behind[name] if to != name)
        looked = _Look(places[name], places[other], next_, MAX_STEPS - steps)
        steps += looked.steps
        if looked.changes:
            return False
        if looked.both:
            if (name in lark.ignored) != (other in lark.ignored):
                return False
            together.add(behind[name], behind[other])
    return True


class _Together:
    """Pairs of terminals that may begin at one place; `waiting` are those not yet looked at."""

    def __init__(self, names: Iterable[str]) -> None:
        self.waiting: list[tuple[str, str]] = []
        self._bits = {name: 1 << k for k, name in enumerate(names)}
        self._seen = dict.fromkeys(self._bits, 0)

    def add(self, some: Iterable[str], others: Iterable[str]) -> None:
        mask = _union(self._bits[name] for name in others)
        for name in some:
            new = mask & ~self._seen[name]
            self._seen[name] |= new
            if new:
                self.waiting += [(name, to) for to, bit in self._bits.items() if new & bit]


class _Look:
    """At all texts with which two terminals may begin. Raises TooLarge after `most` steps."""

    def __init__(self, one: Places, other: Places, next_: int, most: int) -> None:
        self.steps = 1
        self.both = False  # one of the texts is one of both
        self.changes = False  # `other` may go on where `one` is over and a piece ends
        seen = {(p, q) for p in one.first for q in other.first}
        waiting = list(seen)
        while waiting:
            p, q = waiting.pop()
            self.steps += 1
            common = one.chars[p] & other.chars[q]
            if not common:
                continue
            if p in one.last:
                self.both = self.both or q in other.last
                ends = next_ if common & ESCAPED else next_ & ESCAPED
                self.changes |= any(other.chars[k] & ends for k in other.after[q])
            new = {(a, b) for a in one.after[p] for b in other.after[q]} - seen
            seen |= new
            waiting += new
            if self.steps > most:
                raise TooLarge


def _union(sets: Iterable[int]) -> int:
    whole = 0
    for chars in sets:
        whole |= chars
    return whole
