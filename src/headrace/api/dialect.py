"""The seam between dialects and the rest: a body becomes a Call, turn events become its reply.

Nothing else differs by dialect, except the shape of errors before a route is known (`failure`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.api.call import Call
from headrace.api.fields import Fields
from headrace.api.reading import TurnEvent, Usage
from headrace.chat.tokenizer import Tokenizer
from headrace.engine.request import Sampling
from headrace.errors import HeadraceError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of one reply shares."""

    model: str
    tokenizer: Tokenizer
    call: Call
    choices: int
    handles: tuple[str, ...] = ()  # per choice, the word its turn is found by when it comes back
    created: int = field(default_factory=lambda: int(time.time()))


class Encoder(Protocol):
    """Writes one reply: either frames (`first`, `next`..., `last` or `failed`), or `whole`.

    Frames are complete server-sent events (see `sse.frame`). `usage` is what was counted so far.
    """

    def first(self, usage: Usage) -> Iterator[bytes]:
        """Sent at once, before anything was computed."""
        ...

    def next(self, event: TurnEvent, usage: Usage) -> Iterator[bytes]: ...
    def last(self, usage: Usage) -> Iterator[bytes]:
        """After every choice has Ended: the terminal events."""
        ...

    def failed(self, error: HeadraceError, usage: Usage) -> Iterator[bytes]:
        """Instead of `last`. Clients repeat a whole request when the end mark is missing, so it
        comes here too."""
        ...

    def ping(self) -> bytes:
        """Data that changes nothing, between frames: some clients do not count comments."""
        ...

    def whole(self, events: Sequence[TurnEvent], usage: Usage) -> Json:
        """The reply that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One endpoint that generates: how its body is read and its reply is written."""

    name: str
    parse: Callable[[Fields, Sampling], Call]  # on any thread; RequestError
    encoder: Callable[[Envelope], Encoder]
    rename: Callable[[str], str] = str  # a field as others name it -> as this dialect's clients do
    # Errors before the first token that a client who asked for a stream reads there.
    streamed: tuple[type[HeadraceError], ...] = ()
