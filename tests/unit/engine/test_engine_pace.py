"""Pace over made-up machines: what a reader waits for settles near the aim, in either direction."""

from __future__ import annotations

import pytest

from headrace.engine.pace import FEWEST, WAIT_S, Pace


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
    for _ in range(20):
        pace.observe(0.05, decode=1, prefill=3)
        pace.observe(30.0, decode=0, prefill=512)  # nobody waited
    assert pace.tokens == 512


def test_never_below_the_fewest_or_the_configured() -> None:
    for most in (8, 512):
        pace = Pace(most)
        settle(pace, 10, 10)
        assert pace.tokens == min(most, FEWEST)
