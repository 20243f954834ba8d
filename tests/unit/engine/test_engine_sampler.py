"""The sampler against slow, obvious implementations, its draws against exact distributions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.engine.request import Request, Sampling
from headrace.engine.sampler import Drawer, logprobs, pick, sample, unpack
from headrace.errors import DeviceError, RequestError

END = 0
Row = NDArray[np.float32]


def row(seed: int, vocab: int = 50, scale: float = 3.0) -> Row:
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


def drawer(prompt: Sequence[int] = (1,), **sampling: object) -> Drawer:
    return Drawer(Request(tuple(prompt), Sampling(**sampling)), frozenset({END}))  # type: ignore[arg-type]


def slow_distribution(logits: Row, s: Sampling) -> dict[int, float]:
    """The truncated distribution, by the definitions, in Python floats."""
    peak = max(float(x) for x in logits)
    weights = {i: math.exp((float(x) - peak) / s.temperature) for i, x in enumerate(logits)}
    ranked = sorted(weights, key=lambda i: (-logits[i], i))
    if s.top_k:
        ranked = ranked[: s.top_k]
    if s.top_p < 1:
        total, kept, reached = sum(weights[i] for i in ranked), [], 0.0
        for i in ranked:
            kept.append(i)
            reached += weights[i]
            if reached >= s.top_p * total:
                break
        ranked = kept
    ranked = [i for i in ranked if weights[i] >= s.min_p * weights[ranked[0]]]
    total = sum(weights[i] for i in ranked)
    return {i: weights[i] / total for i in ranked}


def slow_adjust(
    logits: Row, prompt: Sequence[int], output: Sequence[int], s: Sampling
) -> list[float]:
    values = [float(x) for x in logits]
    for token in set(prompt) | set(output):
        x = values[token]
        values[token] = x / s.repetition_penalty if x > 0 else x * s.repetition_penalty
    for token, count in Counter(output).items():
        values[token] -= s.presence_penalty + count * s.frequency_penalty
    for token, bias in s.logit_bias.items():
        values[token] += bias
    if len(output) < s.min_tokens:
        for token in s.stop_ids | {END}:
            values[token] = -math.inf
    return values


truncations = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 10, 500]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.05, 0.0]),
    min_p=st.sampled_from([0.0, 1e-5, 0.02, 0.3, 1.0]),
)


@given(s=truncations, seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 3.0, 20.0]))
def test_truncation_keeps_what_its_definition_keeps(s: Sampling, seed: int, scale: float) -> None:
    logits = row(seed, 60, scale)
    exact = slow_distribution(logits, s)
    picked = Counter(pick(logits, s, float(u)) for u in np.linspace(0, 1, 400, endpoint=False))
    ranked = sorted(exact, key=lambda i: (-logits[i], i))
    # What lies on the edge of top-p or min-p may fall either way in the last bit of a float.
    assert set(picked) <= {*exact, *_next_after(logits, ranked)}
    for i, share in exact.items():
        assert abs(picked[i] / 400 - share) <= 2.5 / 400 or i == ranked[-1]


def _next_after(logits: Row, ranked: list[int]) -> list[int]:
    rest = sorted(set(range(len(logits))) - set(ranked), key=lambda i: (-logits[i], i))
    close = 1e-5 * len(ranked)
    return [i for i in rest[:1] if abs(logits[i] - logits[ranked[-1]]) < close]


@pytest.mark.parametrize(
    "s",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_k=6),
        Sampling(temperature=1.3, top_p=0.8),
        Sampling(temperature=1.0, min_p=0.05),
        Sampling(temperature=1.5, top_k=12, top_p=0.9, min_p=0.02),
    ],
)
def test_draws_follow_the_distribution(s: Sampling) -> None:
    """Chi-square over 6,000 draws with a fixed seed, at the 0.1% level."""
    logits, n = row(3, 30, 1.5), 6_000
    exact = slow_distribution(logits, s)
    uniforms = np.random.Generator(np.random.Philox(11)).random(n)
    counts = Counter(pick(logits, s, float(u)) for u in uniforms)
    assert set(counts) <= set(exact)
    cells = [(counts[i], share * n) for i, share in exact.items() if share * n >= 5]
    chi2 = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    freedom = len(cells) - 1
    # Wilson and Hilferty's approximation of the 99.9% quantile.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi2 < limit


def test_no_token_of_weight_zero_is_ever_drawn() -> None:
    logits = np.full(10, -np.inf, dtype=np.float32)
    logits[[3, 7]] = [1.0, 1.0]
    almost = float(np.nextafter(1.0, 0.0))
    for s in (Sampling(), Sampling(top_k=5), Sampling(top_p=0.99), Sampling(min_p=0.1)):
        assert {pick(logits, s, u) for u in (0.0, 0.49, 0.51, almost)} == {3, 7}


def test_top_p_is_a_share_of_all_that_top_k_kept_even_where_min_p_drops_most() -> None:
    weights = np.array([1.0, 0.3, 0.3, *[0.005] * 500])
    s = Sampling(top_k=503, top_p=0.3, min_p=0.02)  # 0.3 of 4.1 is 1.23: the first two
    logits = np.log(weights).astype(np.float32)
    assert {pick(logits, s, u) for u in np.linspace(0, 0.999, 50)} == {0, 1}


def test_ties_go_to_lower_ids() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    s = Sampling(top_k=3)
    assert {pick(logits, s, u) for u in np.linspace(0, 0.999, 50)} == {0, 1, 2}
    assert drawer(temperature=0).draw(logits.copy()).token == 0


@given(
    seed=st.integers(0, 1000),
    prompt=st.lists(st.integers(0, 49), min_size=1, max_size=20),
    repetition=st.sampled_from([1.0, 1.3, 0.7]),
    presence=st.sampled_from([0.0, 0.8, -1.5]),
    frequency=st.sampled_from([0.0, 0.4, -0.3]),
    bias=st.dictionaries(st.integers(0, 49), st.floats(-9, 9, width=32), max_size=4),
    min_tokens=st.integers(0, 5),
)
def test_adjusted_logits(
    seed: int,
    prompt: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
    min_tokens: int,
) -> None:
    one = drawer(
        prompt,
        temperature=0.8,
        seed=seed,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        min_tokens=min_tokens,
        stop_ids=frozenset({4, 9}),
    )
    output: list[int] = []
    for step in range(6):
        logits = row(seed + step)
        expected = slow_adjust(logits, prompt, output, one.sampling)
        draw = one.draw(logits)  # overwrites it with the adjusted ones
        np.testing.assert_allclose(logits, np.array(expected), rtol=2e-6, atol=2e-6)
        assert step >= min_tokens or draw.token not in (END, 4, 9)
        output.append(draw.token)


def test_logprobs_are_of_the_adjusted_distribution_before_temperature() -> None:
    logits = row(5)
    bias = {7: 20.0}
    draw = drawer(temperature=0.01, seed=1, logprobs=3, logit_bias=bias, top_k=1).draw(
        logits.copy()
    )
    adjusted = logits.astype(np.float64)
    adjusted[7] += 20
    exact = adjusted - np.log(np.exp(adjusted).sum())
    ranked = sorted(range(50), key=lambda i: -exact[i])[:3]
    assert draw.token == 7
    assert draw.logprob is not None
    assert draw.logprob.logprob == pytest.approx(exact[7], abs=1e-5)
    assert [i for i, _ in draw.logprob.top] == ranked
    assert [p for _, p in draw.logprob.top] == pytest.approx([exact[i] for i in ranked], abs=1e-5)


def test_logprobs_with_ties_masks_and_more_than_there_are() -> None:
    logits = np.array([1, 2, 2, -np.inf], dtype=np.float32)
    found = logprobs(logits, 0, 10)
    assert [i for i, _ in found.top] == [1, 2, 0]
    assert math.fsum(math.exp(p) for _, p in found.top) == pytest.approx(1)
    assert logprobs(logits, 2, 0).top == ()
    assert [i for i, _ in logprobs(logits, 2, 1).top] == [1]


@given(st.lists(st.booleans(), min_size=1, max_size=130), st.integers(1, 200))
def test_unpack(allowed: list[bool], vocab: int) -> None:
    words = np.zeros(-(-len(allowed) // 32), dtype=np.uint32)
    for i, yes in enumerate(allowed):
        words[i // 32] |= np.uint32(int(yes) << (i % 32))
    expected = [i < len(allowed) and allowed[i] for i in range(vocab)]
    assert unpack(words.view(np.int32), vocab).tolist() == expected


class Fixed:
    """A grammar that always allows the same tokens."""

    done = False

    def __init__(self, *allowed: int) -> None:
        self.words = np.zeros(2, dtype=np.uint32)
        for token in allowed:
            self.words[token // 32] |= np.uint32(1 << (token % 32))
        self.accepted: list[int] = []

    def mask(self) -> NDArray[np.int32]:
        return self.words.view(np.int32)

    def accept(self, token: int) -> None:
        self.accepted.append(token)


def constrained(grammar: Fixed, **sampling: object) -> Drawer:
    return Drawer(Request((1,), Sampling(**sampling), grammar), frozenset({END}))  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 30.0])
def test_grammar_masks_and_follows(temperature: float) -> None:
    grammar = Fixed(3, 31, 32, 49)
    one = constrained(grammar, temperature=temperature, seed=2)
    drawn = [one.draw(row(i)).token for i in range(40)]
    assert set(drawn) <= {3, 31, 32, 49}
    assert len(set(drawn)) > 1
    assert grammar.accepted == drawn


def test_grammar_outranks_min_tokens_only_where_nothing_else_is_allowed() -> None:
    assert constrained(Fixed(END), temperature=0, min_tokens=5).draw(row(1)).token == END
    assert constrained(Fixed(END, 8), temperature=0, min_tokens=5).draw(row(1)).token == 8


def test_bad_rows_fail_alone() -> None:
    rows = np.stack([row(1), row(2), row(3), row(4)])
    rows[1, 7] = np.nan
    rows[2] = -np.inf
    drawers = [drawer(temperature=0), drawer(temperature=0), drawer(temperature=0.5)]
    draws = sample(rows, [*drawers, constrained(Fixed(), temperature=1)])
    assert draws[0].token == int(row(1).argmax())
    assert [type(d.error) for d in draws] == [type(None), DeviceError, DeviceError, RequestError]


def test_the_best_tokens_are_taken_where_nothing_else_is_asked_for() -> None:
    rows = np.stack([row(i) for i in range(5)])
    mixed = [drawer(temperature=0, min_tokens=1) for _ in range(5)]
    plain = [drawer(temperature=0) for _ in range(5)]
    rows[:, END] = -100  # what min_tokens masks would not win anyway
    assert all(d.plain for d in plain)
    assert not any(d.plain for d in mixed)
    expected = [int(r.argmax()) for r in rows]
    assert [d.token for d in sample(rows.copy(), plain, [4, 3, 2, 1, 0])] == [4, 3, 2, 1, 0]
    assert [d.token for d in sample(rows.copy(), plain, [4, 3, -1, 1, 0])] == expected
    assert [d.token for d in sample(rows.copy(), plain)] == expected
    assert [d.token for d in sample(rows.copy(), mixed, [4, 3, 2, 1, 0])] == expected
    assert all(d.plain for d in mixed)  # one token was enough


def test_the_seed_alone_decides() -> None:
    def tokens(seed: int | None) -> list[int]:
        one = drawer(temperature=1.5, seed=seed)
        return [one.draw(row(i)).token for i in range(30)]

    assert tokens(5) == tokens(5)
    assert tokens(5) != tokens(6)
    assert tokens(-1) == tokens((1 << 64) - 1)
    assert tokens(None) != tokens(None)


def test_a_large_vocabulary_takes_the_same_draws() -> None:
    logits = row(9, 20_011, 4.0)
    for s in (
        Sampling(top_p=0.9),
        Sampling(top_k=40),
        Sampling(min_p=0.01),
        Sampling(top_p=0.999),
    ):
        exact = slow_distribution(logits, s)
        ids = sorted(exact)
        sums = np.cumsum([exact[i] for i in ids])
        for u in (0.0, 0.3, 0.9):
            at = ids.index(pick(logits, s, u))
            assert sums[at] - exact[ids[at]] - 1e-4 <= u <= sums[at] + 1e-4
