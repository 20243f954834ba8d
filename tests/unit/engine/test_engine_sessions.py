"""Sessions of agents, scheduler only: prompt tokens computed again, against the fewest that any
cache could compute: what lies behind the longest beginning ever computed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from headrace.engine.request import Marks, Request, RequestId, Sampling
from headrace.engine.scheduler import Scheduler
from headrace.engine.seq import Limits, common
from headrace.engine.step import Draw
from headrace.planning.windows import Window, blocks_each

HEADER, THOUGHT, CALL = [1, 2, 3], 4, 5  # marks: an assistant's turn, end of thinking, of a call
MARKS = Marks(before=frozenset({CALL}), after=frozenset({THOUGHT}))
EXACT = ("append-only", "side requests")  # nothing that was sent ever changes
SHAPES = (
    *EXACT,
    *(
        "subagents",
        "carrier",
        "dropped thinking",
        "serialised anew",
        "pruned results",
        "last results",
    ),
    *("no boundary", "cut in front"),
)


@dataclass
class Server:
    """Answers are random tokens; all that was computed is remembered."""

    recurrent: bool
    anchored: bool = True
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    prompt: int = 0
    computed: int = 0  # of prompts
    fewest: int = 0
    past: list[list[int]] = field(default_factory=list)
    last: int = 0
    worst: int = 0  # prompt tokens computed in one turn behind the first

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            Limits(
                vocab=50_000,
                context=48_000,
                blocks=4000,
                block_tokens=16,
                state_slots=40 if self.recurrent else 0,
                step_tokens=512,
                max_sequences=8,
                max_queued=8,
                prefix_cache=True,
                anchored=self.anchored,
                # Windows are saved with the states, and nothing is found less for them.
                windows=(Window(128, blocks_each(128, 16, 48_000), 32),) if self.recurrent else (),
            )
        )

    def words(self, n: int) -> list[int]:
        return [self.rng.randrange(10, 50_000) for _ in range(n)]

    def ask(self, parts: list[list[int]], answer: list[int]) -> list[int]:
        """The answer, as if the model had said it."""
        return self.ask_all([(parts, answer)])[0]

    def ask_all(self, asks: list[tuple[list[list[int]], list[int]]]) -> list[list[int]]:
        """At the same time."""
        answers: dict[RequestId, list[int]] = {}
        prompts: dict[RequestId, list[int]] = {}
        for parts, answer in asks:
            prompt = [token for part in parts for token in part]
            best = max((common(prompt[:-1], old) for old in self.past), default=0)
            self.past.append(prompt)
            self.last += 1
            id = RequestId(self.last)
            sampling = Sampling(max_tokens=len(answer), ignore_eos=True)
            anchors = tuple(_starts(parts))
            request = Request(tuple(prompt), sampling, anchors=anchors, marks=MARKS)
            self.scheduler.submit(id, request)
            answers[id], prompts[id] = answer, prompt
            self.prompt += len(prompt)
            self.fewest += len(prompt) - best
        self._run(prompts, answers)
        self.past += [[*prompts[id], *answers[id][:-1]] for id in prompts]
        return list(answers.values())

    def _run(
        self, prompts: dict[RequestId, list[int]], answers: dict[RequestId, list[int]]
    ) -> None:
        given = dict.fromkeys(answers, 0)
        before = self.computed
        while (step := self.scheduler.next_step()) is not None:
            draws = []
            for span in step.spans:
                end = min(span.start + span.length, len(prompts[span.request]))
                self.computed += max(0, end - span.start)
                if span.sample:
                    draws.append(Draw(answers[span.request][given[span.request]]))
                    given[span.request] += 1
            self.scheduler.commit(step, draws)
            self.scheduler.copies()
        assert given == {id: len(answer) for id, answer in answers.items()}
        self.scheduler.check()
        if len(self.past) > 1:
            self.worst = max(self.worst, self.computed - before)


def _starts(parts: list[list[int]]) -> Iterator[int]:
    at = 0
    for part in parts:
        yield at
        at += len(part)


def play(server: Server, shape: str) -> None:
    """A user's turn, then some steps with tools; what comes back of it depends on the shape."""
    parts = [server.words(6000), server.words(500)]
    tools: list[int] = []
    for turn in range(20):
        steps = turn % 4
        parts.append(server.words(400 if steps == 0 else server.rng.choice((150, 700, 2500))))
        if steps:
            tools.append(len(parts) - 1)
        if shape == "append-only" and steps == 2:
            parts.append(server.words(120))  # a system message where it stands
        carrier = [server.words(60)] if shape == "carrier" else []
        answer = [*server.words(60), THOUGHT, *server.words(50), CALL, *server.words(40)]
        server.ask([*parts, *carrier, HEADER], answer)
        parts.append([*HEADER, *kept(server, shape, answer)])
        edit(server, shape, turn, parts, tools)
        beside(server, shape, parts)


def kept(server: Server, shape: str, answer: list[int]) -> list[int]:
    """What the client sends back of an answer."""
    if shape == "dropped thinking":
        return answer[answer.index(THOUGHT) + 1 :]
    if shape == "serialised anew":
        return [*answer[: answer.index(CALL)], CALL, *server.words(38)]
    return answer


def edit(server: Server, shape: str, turn: int, parts: list[list[int]], tools: list[int]) -> None:
    """What the client changes of what it sent."""
    if shape == "pruned results" and turn % 6 == 5:
        for i in tools[:-3]:
            parts[i] = parts[i][:20]
    if shape == "last results" and len(tools) > 5:
        parts[tools[-6]] = parts[tools[-6]][:12]
    if shape == "no boundary" and turn % 3 == 2:
        part = parts[-server.rng.randrange(1, 6)]
        part[server.rng.randrange(len(part))] = 9
    if shape == "cut in front" and turn == 12:
        # A window over the history, cut in the middle of a part.
        del parts[2:8]
        parts[2] = parts[2][len(parts[2]) // 3 :]


def beside(server: Server, shape: str, parts: list[list[int]]) -> None:
    """What else is asked between two turns; each fits in a tenth of the cache."""
    if shape == "side requests":
        for _ in range(4):
            server.ask([server.words(1500), HEADER], server.words(20))
    if shape == "subagents":
        agents = [[parts[0], server.words(300), server.words(200)] for _ in range(3)]
        for _ in range(2):
            asked = [([*agent, HEADER], server.words(60)) for agent in agents]
            for agent, said in zip(agents, server.ask_all(asked), strict=True):
                agent += [[*HEADER, *said], server.words(250)]


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_turn_costs_what_is_new_in_it(shape: str, *, recurrent: bool) -> None:
    server = Server(recurrent)
    play(server, shape)
    more = server.computed - server.fewest
    assert more >= 0
    if shape in EXACT:
        assert more <= 0.01 * server.fewest
    assert more <= 0.02 * server.prompt


@pytest.mark.parametrize("shape", ["carrier"])
def test_states_within_prompts_bound_the_worst_turn(shape: str) -> None:
    with_anchors, without = Server(True), Server(True, anchored=False)
    play(with_anchors, shape)
    play(without, shape)
    assert with_anchors.worst * 5 < without.worst
