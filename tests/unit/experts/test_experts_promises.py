"""What the runtime promises, in virtual time: it cannot lose, it adapts, copies hide behind
computing, a short prompt moves only what it routes to, and planning costs the same for any misses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import virtual

from headrace.experts.placement import Prefill
from headrace.planning.profile import ProfileRow

HOST = 1.5e9
ROWS = {
    "they subtract": lambda link: ProfileRow.subtracting(link, HOST),
    "they hardly meet": lambda link: ProfileRow(link, HOST, link, 0.95 * HOST),
    "fixed costs": lambda link: ProfileRow(link, HOST, 0.9 * link, 0.7 * HOST, 2e-6, 3e-6),
}


@contextmanager
def placed(bank: object, row: ProfileRow, fill: str, **how: object) -> Iterator[virtual.Virtual]:
    one = virtual.Virtual(bank, row, fill, **how)  # type: ignore[arg-type]
    yield one
    one.close()


def over_the_better(row: ProfileRow, fill: str, slots: int, steps: int) -> float:
    """Of both pure rules, over a whole run from a cold cache."""
    bank = virtual.bank_of(layers=6, experts=32)
    seconds = {}
    for rule in ("all", "none", fill):
        router = virtual.Router(6, 32, skew=1.0)
        with placed(bank, row, rule, slots=slots) as one:
            for _ in range(steps):
                one.step(router.step())
            seconds[rule] = one.clock.now
    return seconds[fill] / min(seconds["all"], seconds["none"])


@pytest.mark.parametrize("fill", ["balanced", "auto"])
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 1.0])
def test_it_cannot_lose(share: float, kind: str, fill: str) -> None:
    assert over_the_better(ROWS[kind](share * HOST), fill, slots=38, steps=80) <= 1.03


@pytest.mark.parametrize("fill", ["balanced", "auto"])
def test_a_split_that_gains_nothing_now_still_warms_the_cache(fill: str) -> None:
    row = ProfileRow.subtracting(0.75 * HOST, HOST)
    assert over_the_better(row, fill, slots=96, steps=160) <= 1.0


@pytest.mark.parametrize("fill", ["balanced", "auto"])
def test_it_follows_a_link_that_is_throttled_and_let_go(fill: str) -> None:
    bank = virtual.bank_of(layers=12, experts=32)
    router = virtual.Router(12, 32, skew=0.0)
    base = ProfileRow(1e9, HOST, 0.9e9, 1.2e9, fill_s=2e-6, handoff_s=1e-6)
    slow = replace(base, link=base.link / 4, link_shared=base.link_shared / 4)
    (kind,) = {virtual.layer_kind(bank.facts, 0)}
    assert kind is not None
    with placed(bank, base, fill, slots=16) as one:
        for row in (base, slow, base):
            one.clock.row = row
            seen = []
            for _ in range(100):
                one.step(router.step())
                seen.append(one.tuner.row(kind).link_shared / row.link_shared)
            assert all(0.9 < ratio < 1.1 for ratio in seen[50:]), seen


@pytest.mark.parametrize("computing", [0.3, 1.0, 3.0])
def test_a_streamed_chunk_hides_its_copies(computing: float) -> None:
    """At most 1.1 times the larger of copies alone and computing alone."""
    layers, experts, tokens = 24, 16, 32
    bank = virtual.bank_of(layers, experts)
    link = 1e9
    copy_s = experts * bank.row_bytes(0) / link
    flops = 2 * tokens * 8 * 3 * virtual.HIDDEN * virtual.WIDTH / (computing * copy_s)
    row = ProfileRow(link, HOST, link, HOST)
    how = {"slots": 8, "staging": 2 * experts, "prefill": Prefill.STREAM, "flops": flops}
    with placed(bank, row, "all", **how) as one:
        one.step(virtual.Router(layers, experts, skew=0.0).step(tokens), prefill=True)
        assert virtual.moved_rows(bank, one.clock.link.nbytes) == layers * experts
        alone = max(one.clock.compute_s, one.clock.link.busy_s)
        assert alone <= one.clock.now <= 1.1 * alone
        assert not one.slots.residents()


@pytest.mark.parametrize("how", Prefill)
def test_a_prompt_moves_no_row_that_is_here_and_keeps_what_is(how: Prefill) -> None:
    layers, experts = 4, 16
    bank = virtual.bank_of(layers, experts)
    router = virtual.Router(layers, experts, skew=0.5)
    row = ProfileRow(1e9, HOST, 1e9, HOST)
    with placed(bank, row, "all", slots=30, staging=2 * experts, prefill=how) as one:
        for _ in range(5):
            one.step(router.step())
        before, moved = one.slots.residents(), one.clock.link.nbytes
        assert len(before) == 30
        ids = router.step(tokens=5, top_k=2)
        one.step(ids, prefill=True)
        here = {(layer, expert) for layer, expert in before}
        routed = {(layer, int(e)) for layer in range(layers) for e in ids[layer].ravel()}
        every = {(layer, e) for layer in range(layers) for e in range(experts)}
        expected = (every if how is Prefill.STREAM else routed) - here
        assert virtual.moved_rows(bank, one.clock.link.nbytes - moved) == len(expected)
        assert one.slots.residents() == before
