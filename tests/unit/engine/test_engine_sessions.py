"""Sessions of an agent, scheduler only: how many tokens are computed again, against the fewest that
any cache could compute: what lies behind the longest beginning ever computed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from headrace.engine.request import Request, RequestId, Sampling
from headrace.engine.scheduler import Scheduler
from headrace.engine.seq import Limits
from headrace.engine.step import Draw

SHAPES = ("append-only", "carrier", "dropped thinking", "pruned result", "side requests")


@dataclass
class Server:
    """Answers are random tokens; all that was computed is remembered."""

    recurrent: bool
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    computed: int = 0
    fewest: int = 0
    past: list[list[int]] = field(default_factory=list)
    last: int = 0

    def __post_init__(self) -> None:
        numbers = {"step_tokens": 512, "max_sequences": 8, "max_queued": 8, "prefix_cache": True}
        self.scheduler = Scheduler(
            Limits(
                vocab=50_000,
                context=24_000,
                blocks=2400,
                block_tokens=16,
                state_slots=32 if self.recurrent else 0,
                **numbers,
            )
        )

    def words(self, n: int) -> list[int]:
        return [self.rng.randrange(1, 50_000) for _ in range(n)]

    def ask(self, parts: list[list[int]], answer: int) -> list[int]:
        prompt = [token for part in parts for token in part]
        starts = list(_starts(parts))
        best = max((_common(prompt[:-1], old) for old in self.past), default=0)
        self.last += 1
        id = RequestId(self.last)
        sampling = Sampling(max_tokens=answer)
        self.scheduler.submit(id, Request(tuple(prompt), sampling, anchors=tuple(starts)))
        said: list[int] = []
        count = 0
        while (step := self.scheduler.next_step()) is not None:
            count += step.tokens
            draws = [Draw(token) for token in self.words(sum(s.sample for s in step.spans))]
            for event in self.scheduler.commit(step, draws):
                assert event.token is not None
                said.append(event.token)
            self.scheduler.copies()
        self.scheduler.check()
        self.past.append([*prompt, *said[:-1]])
        self.computed += count
        self.fewest += len(prompt) - best + answer - 1
        return said


def _starts(parts: list[list[int]]) -> Iterator[int]:
    at = 0
    for part in parts:
        yield at
        at += len(part)


def _common(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def play(server: Server, shape: str) -> None:
    header = [1, 2, 3]
    parts = [server.words(6000)]
    for turn in range(16):
        parts.append(server.words(400))
        carrier = [server.words(60)] if shape == "carrier" else []
        said = server.ask([*parts, *carrier, header], 150)
        kept = said[100:] if shape == "dropped thinking" else said
        parts.append([*header, *kept])
        if shape == "pruned result" and turn % 5 == 4:
            parts[-6] = parts[-6][:20]
        if shape == "side requests":
            for _ in range(3):
                server.ask([server.words(1500), header], 20)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_turn_costs_what_is_new_in_it(shape: str, *, recurrent: bool) -> None:
    server = Server(recurrent)
    play(server, shape)
    share = server.computed / server.fewest - 1
    assert share <= (0.01 if shape == "append-only" else 0.02)
