"""All that scheduler and runner share: which tokens of which sequences a step computes. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine.request import RequestId


@dataclass(frozen=True, slots=True)
class Span:
    """`length` tokens of one sequence from position `start` on; sampled after the last one if `sample`."""

    request: RequestId
    tokens: tuple[int, ...]  # of this span
    start: int
    blocks: tuple[int, ...]  # KV blocks of the whole sequence so far, this span included
    state: int  # recurrent state slot, -1 = the model has none
    sample: bool

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
