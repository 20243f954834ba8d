"""Token ids of one answer to chat events: the one reader the rest of the program uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.chat.detokenizer import Detokenizer
from headrace.chat.marks import MarkScanner, Piece
from headrace.chat.reasoning import ReasoningSplitter
from headrace.chat.stops import StopScanner
from headrace.chat.style import Style
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.tools.core import CallReader
from headrace.chat.types import ChatEvent, ReasoningDelta, TextDelta, Tool, ToolCallDelta


class TurnReader:
    """Reads one answer, token by token.

    `tools` are those the model was offered: without any, calls stay text. Stop strings apply to the
    text of the answer, not to thinking nor to a call's arguments. After `stopped` nothing more is
    delivered, and the caller ends the generation.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        style: Style,
        tools: Sequence[Tool] = (),
        *,
        in_reasoning: bool = False,
        stop: Sequence[str] = (),
        after_text: bool = False,
    ) -> None:
        offered = tools if style.calls is not None else ()
        self._detokenizer = Detokenizer(tokenizer, after_text=after_text)
        self._marks = MarkScanner(style, calls=bool(offered))
        self._reasoning = ReasoningSplitter(
            in_reasoning=in_reasoning, goes_on=after_text, lead=style.think_lead
        )
        self._calls = CallReader(offered, style.calls)
        self._spelled = style.spelled if offered else {}
        self._stops = StopScanner(stop)
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """A stop string was met."""
        return self._stops.stopped

    @property
    def stop_text(self) -> str | None:
        """The stop string that was met."""
        return self._stops.found

    def feed(self, token: int) -> list[ChatEvent]:
        """The events that became certain with this token; neighbouring deltas are joined."""
        if self.stopped:
            return []
        self.reasoning_tokens += self._reasoning.thinking
        spelled = self._spelled.get(token)
        if spelled is not None:
            return self._events(self._marks.feed(self._detokenizer.finish() + spelled))
        mark = self._marks.of_token(token)
        if mark is None:
            return self._events(self._marks.feed(self._detokenizer.feed(token)))
        before = self._marks.feed(self._detokenizer.finish()) + self._marks.finish()
        return self._events([*before, mark])

    def finish(self) -> list[ChatEvent]:
        """What was held back; the answer is over, whether by its own end or cut off."""
        if self.stopped:
            return []
        pieces = self._marks.feed(self._detokenizer.finish()) + self._marks.finish()
        events = self._read(pieces)
        for item in self._reasoning.finish():
            events += [item] if isinstance(item, ReasoningDelta) else self._calls.feed(item)
        out = self._stop(events + self._calls.finish())
        if not self.stopped and (held := self._stops.finish()):
            out.append(TextDelta(held))
        return joined(out)

    def _events(self, pieces: Iterable[Piece]) -> list[ChatEvent]:
        return joined(self._stop(self._read(pieces)))

    def _read(self, pieces: Iterable[Piece]) -> list[ChatEvent]:
        events: list[ChatEvent] = []
        for piece in pieces:
            if self._calls.in_call:
                events += self._calls.feed(piece)
                continue
            for item in self._reasoning.feed(piece):
                events += [item] if isinstance(item, ReasoningDelta) else self._calls.feed(item)
        return events

    def _stop(self, events: Iterable[ChatEvent]) -> list[ChatEvent]:
        out: list[ChatEvent] = []
        for event in events:
            if isinstance(event, TextDelta):
                text = self._stops.feed(event.text)
                if text:
                    out.append(TextDelta(text))
                if self.stopped:
                    break
            else:
                # A stop string does not reach over a call or a thinking.
                if held := self._stops.finish():
                    out.append(TextDelta(held))
                out.append(event)
        return out


def joined(events: Iterable[ChatEvent]) -> list[ChatEvent]:
    """The same events with neighbouring deltas of one kind made one."""
    out: list[ChatEvent] = []
    for event in events:
        last = out[-1] if out else None
        match last, event:
            case (TextDelta(a), TextDelta(b)):
                out[-1] = TextDelta(a + b)
            case (ReasoningDelta(a), ReasoningDelta(b)):
                out[-1] = ReasoningDelta(a + b)
            case (ToolCallDelta(i, a), ToolCallDelta(j, b)) if i == j:
                out[-1] = ToolCallDelta(i, a + b)
            case _:
                out.append(event)
    return out
