"""The scheduler alone: fairness, preemption, capacity."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.engine.request import Finish, Request, RequestId, Sampling, TokenEvent
from headrace.engine.scheduler import Scheduler
from headrace.engine.seq import Limits
from headrace.engine.step import Draw, Step
from headrace.errors import CapacityError, DeviceError, RequestError

END = 0


def limits(**over: int) -> Limits:
    numbers = {
        "vocab": 100,
        "context": 64,
        "blocks": 32,
        "block_tokens": 4,
        "state_slots": 0,
        "step_tokens": 8,
        "max_sequences": 4,
        "max_queued": 100,
    }
    return Limits(**(numbers | over), end_ids=frozenset({END}))  # type: ignore[arg-type]


def request(length: int, **sampling: int) -> Request:
    return Request(tuple(1 + i % 9 for i in range(length)), Sampling(**sampling))  # type: ignore[arg-type]


def commit(scheduler: Scheduler, step: Step, token: int = 5) -> list[TokenEvent]:
    return scheduler.commit(step, [Draw(token) for span in step.spans if span.sample])


def must_step(scheduler: Scheduler) -> Step:
    step = scheduler.next_step()
    assert step is not None
    scheduler.check()
    return step


def lengths(step: Step) -> dict[int, int]:
    return {span.request: span.length for span in step.spans}


def submit(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        ids = scheduler.ids()
        scheduler.submit(RequestId(ids[-1] + 1 if ids else 1), request)


def test_a_long_prompt_does_not_freeze_a_stream() -> None:
    scheduler = Scheduler(limits())
    submit(scheduler, request(3), request(40))
    commit(scheduler, must_step(scheduler))
    for _ in range(4):
        step = must_step(scheduler)
        assert step.spans[0].request == 1  # decode first
        assert lengths(step) == {1: 1, 2: 7}  # and the prompt fills the rest
        commit(scheduler, step)


def test_mixed_steps_are_bounded_and_pure_prompts_are_not() -> None:
    scheduler = Scheduler(limits(step_tokens=32))
    scheduler.mixed_tokens = 6
    submit(scheduler, request(20))
    step = must_step(scheduler)
    assert lengths(step) == {1: 20}
    commit(scheduler, step)
    submit(scheduler, request(30), request(30))
    for shares in ({1: 1, 2: 2, 3: 3}, {1: 1, 2: 3, 3: 2}):
        step = must_step(scheduler)
        assert lengths(step) == shares
        commit(scheduler, step)
    scheduler.mixed_tokens = 1  # each prompt goes on all the same
    assert lengths(must_step(scheduler)) == {1: 1, 2: 1, 3: 1}


def test_prompts_share_a_step_and_short_ones_leave_the_rest() -> None:
    scheduler = Scheduler(limits(step_tokens=12))
    submit(scheduler, request(2), request(20), request(20))
    assert lengths(must_step(scheduler)) == {1: 2, 2: 5, 3: 5}


def test_more_sequences_than_step_tokens_take_turns() -> None:
    scheduler = Scheduler(limits(step_tokens=2))
    submit(scheduler, *[request(1, max_tokens=6) for _ in range(4)])
    turns = dict.fromkeys(range(1, 5), 0)
    for _ in range(12):
        step = must_step(scheduler)
        assert step.tokens == 2
        for id in lengths(step):
            turns[id] += 1
        assert max(turns.values()) - min(turns.values()) <= 1
        commit(scheduler, step)
    assert turns == {1: 6, 2: 6, 3: 6, 4: 6}
    assert scheduler.idle


def test_the_youngest_is_preempted_and_goes_on_from_its_tokens() -> None:
    scheduler = Scheduler(limits(context=16, blocks=4))
    submit(scheduler, request(4, max_tokens=9), request(4, max_tokens=9))
    outputs: dict[int, list[int]] = {1: [], 2: []}
    recomputed = []
    while (step := scheduler.next_step()) is not None:
        scheduler.check()
        recomputed += [s for s in step.spans if s.request == 2 and s.start == 0]
        for event in commit(scheduler, step, token=len(outputs[1]) + 1):
            assert event.token is not None
            outputs[event.request].append(event.token)
    assert scheduler.preemptions == 1
    again = recomputed[-1]
    assert len(recomputed) > 1
    assert again.tokens[:4] == request(4).tokens
    assert list(again.tokens[4:]) == outputs[2][: again.length - 4]
    assert [len(o) for o in outputs.values()] == [9, 9]
    assert scheduler.blocks.used == 0


def test_the_oldest_is_never_preempted() -> None:
    scheduler = Scheduler(limits(context=16, blocks=4, step_tokens=1))
    submit(scheduler, *[request(4, max_tokens=12) for _ in range(4)])
    starts = 0
    for _ in range(200):
        step = scheduler.next_step()
        if step is None:
            break
        scheduler.check()
        starts += any(s.request == 1 and s.start == 0 for s in step.spans)
        commit(scheduler, step)
    assert starts == 1
    assert scheduler.idle


def test_a_newcomer_leaves_room_to_grow() -> None:
    scheduler = Scheduler(limits(context=16, blocks=4, step_tokens=16))
    submit(scheduler, request(12, max_tokens=4), request(2))
    for _ in range(4):  # the fourth block is for the first one's answer
        step = must_step(scheduler)
        assert set(lengths(step)) == {1}
        commit(scheduler, step)
    assert lengths(must_step(scheduler)) == {2: 2}
    assert scheduler.preemptions == 0


def test_state_slots_bound_what_runs() -> None:
    scheduler = Scheduler(limits(state_slots=2))
    submit(scheduler, *[request(2, max_tokens=1) for _ in range(3)])
    step = must_step(scheduler)
    assert {span.state for span in step.spans} == {0, 1}
    assert (scheduler.running, scheduler.waiting) == (2, 1)
    commit(scheduler, step)
    assert [span.request for span in must_step(scheduler).spans] == [3]


@pytest.mark.parametrize(
    ("sampling", "token", "finish"),
    [
        ({}, END, Finish.STOP),
        ({"ignore_eos": True}, END, None),
        ({"stop_ids": frozenset({7})}, 7, Finish.STOP),
        ({"ignore_eos": True, "stop_ids": frozenset({7})}, 7, Finish.STOP),
        ({"max_tokens": 1}, 5, Finish.LENGTH),
        ({"max_tokens": 1}, END, Finish.STOP),
        ({"max_tokens": 2}, 5, None),
    ],
)
def test_how_sequences_end(sampling: dict[str, int], token: int, finish: Finish | None) -> None:
    scheduler = Scheduler(limits())
    submit(scheduler, request(3, **sampling))
    (event,) = commit(scheduler, must_step(scheduler), token)
    assert (event.token, event.finish) == (token, finish)
    assert scheduler.idle == (finish is not None)
    scheduler.check()


def test_the_context_ends_a_sequence() -> None:
    scheduler = Scheduler(limits(context=8))
    submit(scheduler, request(6))
    assert [e.finish for e in commit(scheduler, must_step(scheduler))] == [None]
    assert [e.finish for e in commit(scheduler, must_step(scheduler))] == [Finish.LENGTH]


class OneWord:
    """A grammar of exactly one token."""

    done = False

    def mask(self) -> None: ...
    def accept(self, token: int) -> None:
        self.done = True


def test_a_complete_grammar_ends_with_an_event_of_its_own() -> None:
    scheduler, word = Scheduler(limits()), OneWord()
    submit(scheduler, Request((1, 2), Sampling(), word))  # type: ignore[arg-type]
    step = must_step(scheduler)
    word.accept(5)
    events = commit(scheduler, step, 5)
    assert [(e.token, e.finish) for e in events] == [(5, None), (None, Finish.STOP)]
    assert scheduler.idle


def test_a_failed_draw_ends_its_sequence_alone() -> None:
    scheduler = Scheduler(limits())
    submit(scheduler, request(2), request(2))
    error = DeviceError("not finite")
    events = scheduler.commit(must_step(scheduler), [Draw(-1, error=error), Draw(5)])
    assert [(e.request, e.finish, e.error) for e in events] == [
        (1, Finish.ERROR, error),
        (2, None, None),
    ]
    assert lengths(must_step(scheduler)) == {2: 1}


def test_cancel_while_waiting_running_and_between_step_and_commit() -> None:
    scheduler = Scheduler(limits(max_sequences=1))
    submit(scheduler, request(3), request(3))
    event = scheduler.cancel(RequestId(2))
    assert event == TokenEvent(RequestId(2), None, Finish.CANCELLED)
    step = must_step(scheduler)
    assert scheduler.cancel(RequestId(1)) is not None
    assert commit(scheduler, step) == []
    assert scheduler.cancel(RequestId(1)) is None
    assert scheduler.idle
    assert scheduler.blocks.used == 0


def test_prompts_that_cannot_be_served() -> None:
    scheduler = Scheduler(limits(context=10))
    with pytest.raises(CapacityError, match=r"10 tokens.*at most 9"):
        submit(scheduler, request(10))
    with pytest.raises(RequestError, match="empty"):
        submit(scheduler, request(0))
    with pytest.raises(RequestError, match=r"token 100.*0 to 99"):
        submit(scheduler, Request((1, 100)))
    with pytest.raises(RequestError, match="token -1"):
        submit(scheduler, Request((1, -1)))
    submit(scheduler, request(9))
    assert scheduler.waiting == 1


def test_a_full_queue_says_when_to_come_back() -> None:
    scheduler = Scheduler(limits(max_sequences=1, max_queued=1))
    submit(scheduler, request(2), request(2))
    with pytest.raises(CapacityError, match="2 requests") as raised:
        submit(scheduler, request(2))
    assert raised.value.http_status == 429
    assert raised.value.retry_s is not None
    assert raised.value.retry_s > 0
    scheduler.cancel(RequestId(1))
    with pytest.raises(CapacityError):
        scheduler.validate(request(2), pending=1)
    scheduler.validate(request(2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 1.01},
        {"top_p": -0.1},
        {"min_p": 2.0},
        {"top_k": -1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": 1e9},
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"min_tokens": 4, "max_tokens": 3},
        {"logprobs": -1},
        {"logit_bias": {100: 1.0}},
        {"logit_bias": {1: float("inf")}},
        {"stop_ids": frozenset({-1})},
    ],
)
def test_absurd_parameters_are_refused_by_name(wrong: dict[str, object]) -> None:
    scheduler = Scheduler(limits())
    with pytest.raises(RequestError) as raised:
        submit(scheduler, Request((1,), Sampling(**wrong)))  # type: ignore[arg-type]
    assert raised.value.field is not None
    assert raised.value.field.split("[")[0] in wrong
    assert scheduler.idle


def test_a_step_names_the_tokens_it_computes() -> None:
    scheduler = Scheduler(limits(step_tokens=5))
    submit(scheduler, request(7))
    spans: Sequence[object] = [s.tokens for s in must_step(scheduler).spans]
    assert spans == [request(7).tokens[:5]]
