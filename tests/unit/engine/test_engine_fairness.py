"""Whose turn it is, what waits for what, and where states are kept while an answer is written."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from test_engine_scheduler import commit, limits, must_step, submit

from headrace.engine.fairness import shares
from headrace.engine.request import Marks, Request, RequestId, Sampling
from headrace.engine.scheduler import Scheduler
from headrace.engine.seq import common


def prompt(first: int, length: int, **over: object) -> Request:
    tokens = tuple(1 + (first + i) % 99 for i in range(length))
    return Request(tokens, Sampling(max_tokens=4, ignore_eos=True), **over)  # type: ignore[arg-type]


@given(
    prompts=st.lists(
        st.tuples(st.integers(2, 500), st.sampled_from("abc")), min_size=1, max_size=9
    ),
    extra=st.integers(0, 900),
)
def test_shares(prompts: list[tuple[int, str]], extra: int) -> None:
    items = [(i, *prompt) for i, prompt in enumerate(prompts)]
    budget = len(items) + extra
    parted = shares(items, lambda p: p[1], lambda p: p[2], budget)
    assert sorted(item for item, _ in parted) == items
    assert all(1 <= n <= item[1] for item, n in parted)
    total = sum(n for _, n in parted)
    assert total <= budget
    # Nothing is left while somebody wants it, but for what does not divide.
    assert total == min(budget, sum(item[1] for item in items)) or budget - total < len(items)
    parts = Counter[str]()
    for item, n in parted:
        parts[item[2]] += n
    hungry = {item[2] for item, n in parted if n < item[1]}
    sizes = [parts[who] for who in hungry]
    assert not sizes or max(sizes) - min(sizes) <= len(items)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_common(a: list[int], b: list[int]) -> None:
    n = common(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_a_crowd_does_not_keep_a_conversation_waiting() -> None:
    scheduler = Scheduler(limits(max_sequences=2, step_tokens=32))
    crowd = [prompt(i, 10, conversation="crowd") for i in range(12)]
    submit(scheduler, *crowd, prompt(50, 10, conversation="lone"))
    places = [(waits["request"], waits["position"]) for waits in scheduler.queue()]
    assert places[0] == (1, 1)
    assert len(places) == 13
    order: list[int] = []
    while (step := scheduler.next_step()) is not None:
        scheduler.check()
        order += [span.request for span in step.spans if span.request not in order]
        commit(scheduler, step)
    assert order.index(13) <= 2
    assert [id for id in order if id != 13] == list(range(1, 13))  # and the crowd in order


def test_a_stream_of_newcomers_does_not_keep_anybody_waiting() -> None:
    scheduler = Scheduler(limits(max_sequences=1, step_tokens=64))
    submit(scheduler, prompt(0, 30, conversation="a"), prompt(1, 30, conversation="a"))
    began: list[int] = []
    for i in range(400):
        if i % 4 == 0:  # as fast as they are served
            id = RequestId(3 + i // 4)
            scheduler.submit(id, prompt(i % 50, 10, conversation=f"new {i}"))
        step = must_step(scheduler)
        began += [s.request for s in step.spans if s.request not in began]
        commit(scheduler, step)
    assert began.index(2) <= 34


def test_conversations_share_a_step() -> None:
    scheduler = Scheduler(limits(step_tokens=24, max_sequences=4, context=128, blocks=200))
    crowd = [prompt(i, 60, conversation="crowd") for i in range(3)]
    submit(scheduler, *crowd, prompt(50, 60, conversation="lone"))
    step = must_step(scheduler)
    n = {span.request: span.length for span in step.spans}
    assert abs(n[4] - (n[1] + n[2] + n[3])) <= 4


def test_what_another_one_computes_is_waited_for() -> None:
    for slots in (0, 8):
        numbers = {"blocks": 400, "context": 900, "step_tokens": 100, "state_slots": slots}
        scheduler = Scheduler(limits(prefix_cache=True, **numbers))
        shared = prompt(0, 300)
        requests = [Request((*shared.tokens, 7, 8, i), shared.sampling, anchors=(0, 300)) for i in
                    range(3)]  # fmt: skip
        submit(scheduler, *requests)
        computed = 0
        while (step := scheduler.next_step()) is not None:
            scheduler.check()
            computed += step.tokens
            commit(scheduler, step)
            scheduler.copies()
        assert computed == 300 + 3 * (3 + 4 - 1)


def test_one_that_is_waited_for_may_be_cancelled() -> None:
    scheduler = Scheduler(limits(prefix_cache=True, blocks=400, context=900, step_tokens=50))
    submit(scheduler, prompt(0, 300), prompt(0, 301))
    assert {span.request for span in must_step(scheduler).spans} == {1}
    scheduler.cancel(RequestId(1))
    assert {span.request for span in must_step(scheduler).spans} == {2}


def test_states_are_kept_at_marks() -> None:
    """Thinking ends with 51, a call begins with 52."""
    marks = Marks(before=frozenset({52}), after=frozenset({51}))
    numbers = {"blocks": 100, "context": 300, "step_tokens": 100, "state_slots": 16}
    for wanted, kept in ((marks, {41, 44, 46, 48}), (Marks(), {41, 48})):
        scheduler = Scheduler(limits(prefix_cache=True, **numbers))
        tokens = tuple(range(1, 42))
        request = Request(tokens, Sampling(max_tokens=8, ignore_eos=True), marks=wanted)
        scheduler.submit(RequestId(1), request)
        for token in (60, 61, 51, 62, 63, 52, 64, 65):
            commit(scheduler, must_step(scheduler), token)
            scheduler.copies()
        assert scheduler.idle
        scheduler.check()
        assert {c.position for c in scheduler.cache.checkpoints} == kept
