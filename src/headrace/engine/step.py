"""All that scheduler, runner and sampler share: what a step computes and what it drew. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.cache.blocks import Tables
from headrace.cache.lease import Cut
from headrace.engine.request import Logprob, RequestId
from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Span:
    """`length` tokens of one sequence from position `start` on; sampled after the last if `sample`.

    A span with `start == 0` begins (or, after a preemption, begins again): its state slot holds
    nothing yet.
    """

    request: RequestId
    tokens: tuple[int, ...]  # of this span
    start: int
    blocks: tuple[int, ...]  # KV blocks of the whole sequence so far, this span included
    state: int  # state slot, -1 = the model has none
    sample: bool
    cuts: tuple[Cut, ...] = ()  # where its state is kept, at most at the span's end
    windows: Tables = ()  # blocks of layers with a window that some token of this span looks at

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Step:
    """Spans of one forward pass, decode spans first."""

    spans: tuple[Span, ...]

    @property
    def tokens(self) -> int:
        return sum(span.length for span in self.spans)


class Draw(NamedTuple):
    """What was chosen after a span with `sample`; with `error`, that sequence alone fails."""

    token: int
    logprob: Logprob | None = None
    error: HeadraceError | None = None
