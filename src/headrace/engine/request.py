"""What a client asks of the engine and what comes back. No torch, no text: token ids only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError

RequestId = NewType("RequestId", int)


class Finish(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # an end-of-turn or stop token, or a completed grammar
    LENGTH = "length"  # max_tokens or the context
    CANCELLED = "cancelled"
    ERROR = "error"


class Constraint(Protocol):
    """A grammar over token ids, the engine's from `submit` on: it calls it from one thread."""

    def mask(self) -> NDArray[np.int32]:
        """Allowed tokens as a bit set: word `i // 32`, bit `i % 32`; little-endian, vocab-sized."""
        ...

    def accept(self, token: int) -> None:
        """Advance by one sampled token (always one that `mask` allowed)."""
        ...

    @property
    def done(self) -> bool:
        """True when the grammar is complete and allows nothing more."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. The same seed gives the same tokens whatever else is running.

    In this order: penalties, `logit_bias`, `min_tokens`, the request's grammar; then temperature,
    top-k, top-p, min-p.
    """

    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output (Keskar et al. 2019)
    presence_penalty: float = 0.0  # over output only, as the OpenAI API defines it
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None  # None = drawn at submit
    max_tokens: int | None = None  # None = up to the context
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()  # besides the model's own end tokens
    ignore_eos: bool = False
    logprobs: int | None = None  # None = none; n = the chosen token and the n best


@dataclass(frozen=True, slots=True)
class Marks:
    """Tokens of an answer at which its text may be cut or changed later: a state is kept there."""

    before: frozenset[int] = frozenset()  # with which a tool call begins
    after: frozenset[int] = frozenset()  # with which thinking ends


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence: a prompt and how to go on from it."""

    tokens: tuple[int, ...]
    sampling: Sampling = Sampling()
    constraint: Constraint | None = None
    anchors: tuple[int, ...] = ()  # positions where parts of the prompt begin, see cache/anchors.py
    marks: Marks = Marks()
    conversation: str = ""  # that it is a turn of, if the client says; "" = told by its beginning

    @property
    def opening(self) -> int:
        """Tokens of the first exchange: system prompt and first message; 0 = not known."""
        inside = sorted({a for a in self.anchors if 0 <= a < len(self.tokens)})
        return inside[2] if len(inside) > 2 else 0

    @property
    def inner(self) -> list[int]:
        """Positions of the marks in the prompt."""
        first, last = self.marks.before, self.marks.after
        marks = first | last
        places = [(i, token) for i, token in enumerate(self.tokens) if token in marks]
        return [i if token in first else i + 1 for i, token in places]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log probabilities of the whole distribution that penalties, bias, `min_tokens` and
    grammar leave, before temperature and truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob), best first, none of them forbidden


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One step of one sequence. The last event of a request has `finish` set.

    `token` is None on a finish without a token (cancelled, error, a completed grammar, whose last
    token is text and came before); a stop token is delivered with `finish == STOP` and is not part
    of the text.
    """

    request: RequestId
    token: int | None
    finish: Finish | None = None
    logprob: Logprob | None = None
    error: HeadraceError | None = None
    cached: int = 0  # prompt tokens that were not computed, because an earlier request had them
