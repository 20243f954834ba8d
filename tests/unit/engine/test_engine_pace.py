"""Pace over made-up machines: what a reader waits for settles near the aim, in either direction."""

from __future__ import annotations

import random

import pytest

from headrace.engine.pace import FEWEST, SLOWDOWN, WAIT_S, Pace
from headrace.engine.request import Request, Sampling
from headrace.engine.scripted import ScriptedEngine
from headrace.engine.step import Step


def settle(pace: Pace, fixed_s: float, token_s: float, *, steps: int = 30) -> float:
    """Seconds of a full mixed step once the pace has settled."""
    for _ in range(steps):
        pace.observe(fixed_s + token_s, decode=1, prefill=0)
        pace.observe(fixed_s + token_s * pace.tokens, decode=1, prefill=pace.tokens - 1)
    return fixed_s + token_s * pace.tokens


@pytest.mark.parametrize(
    ("fixed_s", "token_s"), [(0.05, 0.004), (0.2, 0.001), (0.01, 0.01), (0.6, 0.005)]
)
def test_a_slow_machine_gets_steps_of_about_the_aim(fixed_s: float, token_s: float) -> None:
    pace = Pace(512)
    assert fixed_s + 512 * token_s > WAIT_S
    waited = settle(pace, fixed_s, token_s)
    aim = max(WAIT_S, 2 * (fixed_s + token_s))
    assert 0.75 * aim <= waited <= 1.25 * aim
    assert FEWEST <= pace.tokens < 512


def test_a_fast_machine_keeps_whole_steps() -> None:
    pace = Pace(512)
    settle(pace, 0.01, 0.0001)
    assert pace.tokens == 512


def test_it_recovers_when_the_machine_does() -> None:
    pace = Pace(512)
    settle(pace, 0.1, 0.02)
    assert pace.tokens < 64
    settle(pace, 0.01, 0.0002)
    assert pace.tokens == 512


def test_short_last_pieces_of_prompts_teach_nothing() -> None:
    pace = Pace(512)
    settle(pace, 0.01, 0.0001)
    for _ in range(20):
        pace.observe(0.05, decode=1, prefill=3)
    assert pace.tokens == 512


def test_what_nobody_waited_for_is_known_to_the_next_who_does() -> None:
    pace = Pace(512)
    for _ in range(3):
        pace.observe(2.05, decode=0, prefill=512)
    assert 100 <= pace.tokens <= 128
    pace.observe(8.2, decode=0, prefill=512)
    assert FEWEST <= pace.tokens <= 128


class Machine:
    """Time that passes only while a step is computed."""

    def __init__(self, fixed_s: float, token_s: float, pair_s: float) -> None:
        self.now = 0.0
        self._fixed_s, self._token_s, self._pair_s = fixed_s, token_s, pair_s

    def __call__(self) -> float:
        return self.now

    def seconds(self, step: Step) -> float:
        """`pair_s`: of a token and one that it attends to."""
        pairs = sum(span.length * (span.start + span.length / 2) for span in step.spans)
        return self._fixed_s + self._token_s * step.tokens + self._pair_s * pairs

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("fixed_s", "token_s", "pair_s"),
    [(0.02, 0.003, 0), (0.25, 0.001, 0), (0.01, 0.0002, 0), (0.02, 0.001, 2e-7), (0.4, 0.004, 0)],
)
def test_no_stream_waits_longer_while_agents_send_long_prompts(
    fixed_s: float, token_s: float, pair_s: float
) -> None:
    """Answers of three clients, and prompts of 2,000 to 16,000 tokens that come in between."""
    machine = Machine(fixed_s, token_s, pair_s)
    engine = ScriptedEngine.of(
        lambda _: [5] * 150,
        vocab=64,
        end_ids=frozenset({0}),
        state_slots=40,
        step_tokens=512,
        pace=machine.seconds,
        clock=machine,
        sleep=machine.sleep,
    )
    rng = random.Random(3)

    def ask(tokens: int) -> None:
        prompt = tuple(rng.randrange(6, 64) for _ in range(tokens))
        engine.submit(Request(prompt, Sampling(max_tokens=150, ignore_eos=True)))

    for _ in range(3):
        ask(30)
    last: dict[int, float] = {}
    gaps: list[float] = []
    steps = 0
    while not engine.idle:
        steps += 1
        if steps in (10, 25, 26, 60, 90):
            ask(rng.randrange(2000, 16_000))
        for event in engine.step():
            assert event.error is None
            if event.request in last:
                gaps.append(machine.now - last[event.request])
            last[event.request] = machine.now
    engine.check()
    assert len(last) == 8
    # The aim of `Pace` (of a step that decodes eight), and what it overshoots by where work grows.
    aim = max(WAIT_S, SLOWDOWN * (fixed_s + 8 * token_s))
    assert max(gaps) <= 1.3 * aim
    assert max(gaps) > fixed_s + token_s


def test_never_below_the_fewest_or_the_configured() -> None:
    for most in (8, 512):
        pace = Pace(most)
        settle(pace, 10, 10)
        assert pace.tokens == min(most, FEWEST)
