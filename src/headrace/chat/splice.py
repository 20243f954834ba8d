"""Generated tokens in place of rendered text, where a turn came back as it was generated.

The text of a prompt stays what the template made of the conversation. Only where a turn that is
equal as data is written differently (JSON in calls, blank space at the edges of its parts) does the
text as generated take the place of the text as rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.chat.echo import SpokenTurn, same_arguments
from headrace.chat.tokenizer import Tokenizer

MIN_CHARS = 16  # a shorter common beginning is not worth a cut in the text
MAX_TRIES = 256  # openings looked at for one turn that is equal
MAX_NEAR_TRIES = 8  # and for one that is only alike
MAX_LOOKS = 50_000  # openings looked at for one prompt
MAX_READINGS = 64  # turns read back for one prompt

Read = Callable[[str, SpokenTurn], SpokenTurn]


@dataclass(frozen=True, slots=True)
class Splice:
    """`tokens` and their text, in place of characters `start` to `end` of the rendered text."""

    start: int
    end: int
    tokens: Sequence[int]
    text: str


class Splicer:
    """Finds the places in one rendered prompt.

    `guarded` writes a text as the rendering has it; `read` reads rendered text of a turn back;
    `ends` are the texts that end a turn; `lead` has the words before its calls, which are the same
    in equal turns: a look at them is much cheaper than `read`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        guarded: Callable[[str], str],
        read: Read,
        ends: Sequence[str],
        lead: Callable[[str], list[str]],
    ) -> None:
        self._tokenizer = tokenizer
        self._guarded = guarded
        self._read = read
        self._ends = ends
        self._lead = lead
        self._readings = 0
        self._looks = 0

    def splices(
        self, text: str, turns: Sequence[Sequence[tuple[SpokenTurn, bool]]]
    ) -> list[Splice]:
        """In order and apart. Each message has candidates, with whether they are equal to it."""
        said = [
            [self._candidate(turn, equal=equal) for turn, equal in candidates]
            for candidates in turns
        ]
        # Whole turns first: a beginning that many turns share must not take the place of one.
        whole: list[Splice | None] = []
        at = 0
        for candidates in said:
            placed = (self._whole(text, at, candidate) for candidate in candidates)
            whole.append(next((splice for splice in placed if splice is not None), None))
            at = at if whole[-1] is None else whole[-1].end
        limits = [len(text)]
        for splice in reversed(whole[1:]):
            limits.insert(0, limits[0] if splice is None else splice.start)
        found: list[Splice] = []
        for splice, limit, candidates in zip(whole, limits, said, strict=False):
            at = found[-1].end if found else 0
            parts = (self._part(text, at, limit, candidate) for candidate in candidates)
            some = [part for part in parts if part is not None] if splice is None else [splice]
            if some:
                found.append(max(some, key=lambda part: len(part.tokens)))
        return found

    def _candidate(self, turn: SpokenTurn, *, equal: bool) -> _Candidate:
        return _Candidate(turn, _Text(self._tokenizer, turn.tokens, self._guarded), equal)

    def _whole(self, text: str, at: int, candidate: _Candidate) -> Splice | None:
        turn, said = candidate.turn, candidate.text
        for start in self._starts(text, at, candidate):
            lead = said.lead(text, start)
            if text.startswith(said.text[lead:], start):
                end = start + len(said.text) - lead
                if self._ended(text, end):
                    return Splice(start, end, turn.tokens, said.plain)
            end = self._end(text, start)
            same = candidate.equal and turn.whole
            if same and self._same(text[start:end], said.text, turn):
                return Splice(start, end, turn.tokens, said.plain)
        return None

    def _part(self, text: str, at: int, limit: int, candidate: _Candidate) -> Splice | None:
        """Of its tokens those that spell the longest common beginning, the first such place."""
        said, best = candidate.text, (0, 0)
        for start in self._starts(text, at, candidate):
            if start >= limit:
                break
            end = min(limit, self._end(text, start))
            best = max(best, (said.common(text, start, end), -start))
        return said.beginning(best[0], -best[1]) if best[0] >= MIN_CHARS else None

    def _starts(self, text: str, at: int, candidate: _Candidate) -> Iterator[int]:
        opening = candidate.turn.opening
        if not opening or not candidate.text.text:
            return
        for _ in range(MAX_TRIES if candidate.equal else MAX_NEAR_TRIES):
            at = text.find(opening, at)
            self._looks += 1
            if at < 0 or self._looks > MAX_LOOKS:
                return
            at += len(opening)
            yield at

    def _end(self, text: str, start: int) -> int:
        ends = (text.find(end, start) for end in self._ends)
        return min((end for end in ends if end >= 0), default=len(text))

    def _ended(self, text: str, end: int) -> bool:
        """Whether the turn is over there: a longer text is another turn."""
        rest = text[end : end + 64].lstrip()
        return not rest or any(rest.startswith(mark) for mark in self._ends)

    def _same(self, rendered: str, said: str, turn: SpokenTurn) -> bool:
        if self._lead(rendered) != self._lead(said) or self._readings >= MAX_READINGS:
            return False
        self._readings += 1
        back = self._read(rendered, turn)
        return (
            back.content.strip() == turn.content.strip()
            and back.reasoning.strip() == turn.reasoning.strip()
            and len(back.calls) == len(turn.calls)
            and all(
                a.name == b.name and same_arguments(a.arguments, b.arguments)
                for a, b in zip(back.calls, turn.calls, strict=True)
            )
        )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A turn that a message may be; whether it is equal to it as data."""

    turn: SpokenTurn
    text: _Text
    equal: bool


class _Text:
    """What tokens spell, in the form the rendered text has it."""

    def __init__(
        self, tokenizer: Tokenizer, tokens: Sequence[int], guarded: Callable[[str], str]
    ) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        runs: list[str] = []
        plain: list[str] = []
        data = b""
        for token in tokens:
            if token not in tokenizer.special_ids:
                data += tokenizer.token_bytes(token)
                continue
            plain.append(data.decode("utf-8", "replace"))
            mark = tokenizer.token_bytes(token).decode("utf-8", "replace")
            runs += [guarded(plain[-1]), mark]
            plain.append(mark)
            data = b""
        plain.append(data.decode("utf-8", "replace"))
        runs.append(guarded(plain[-1]))
        self.plain = "".join(plain)
        self.text = "".join(runs)

    def lead(self, text: str, start: int) -> int:
        """1 if the vocabulary puts a blank before the first word, and the text has none there."""
        if not self._tokenizer.decoder.strip_lead or not self.text.startswith(" "):
            return 0
        return int(not text.startswith(" ", start))

    def common(self, text: str, start: int, end: int) -> int:
        """How many characters the two have in common at their beginning; 0 where a cut there is
        not possible."""
        # Pieces of such vocabularies depend on what stands before them, and so does the rest.
        if self._tokenizer.decoder.strip_lead or "\ufffd" in self.text or self.text != self.plain:
            return 0
        low, high = 0, min(len(self.text), end - start)
        while low < high:
            middle = (low + high + 1) // 2
            if text.startswith(self.text[:middle], start):
                low = middle
            else:
                high = middle - 1
        return low

    def beginning(self, chars: int, start: int) -> Splice | None:
        """The whole tokens of the first `chars` characters, in place of the text at `start`."""
        limit = len(self.text[:chars].encode())
        spelled = self.text.encode()
        data, count, whole = 0, 0, 0
        for n, token in enumerate(self._tokens, 1):
            data += len(self._tokenizer.token_bytes(token))
            if data > limit:
                break
            if data == len(spelled) or spelled[data] & 0xC0 != 0x80:
                count, whole = n, data
        if not count:
            return None
        said = spelled[:whole].decode()
        return Splice(start, start + len(said), self._tokens[:count], said)
