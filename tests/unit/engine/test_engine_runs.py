"""The engine over a model whose every token depends on all earlier ones, against plain lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fake_forward import END, VOCAB, logits_after, make_engine, state_of, truth
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.engine import Engine
from headrace.engine.request import Finish, Request, RequestId, Sampling, TokenEvent
from headrace.errors import CapacityError, DeviceError, HeadraceError, RequestError

MIXED = [
    Sampling(temperature=0, max_tokens=20, ignore_eos=True),
    Sampling(temperature=1.0, seed=1, max_tokens=20),
    Sampling(temperature=0.7, top_k=5, seed=2, max_tokens=17),
    Sampling(temperature=1.3, top_p=0.8, seed=3, max_tokens=20),
    Sampling(temperature=1.0, min_p=0.1, seed=4, max_tokens=9),
    Sampling(temperature=0, repetition_penalty=1.4, max_tokens=20),
    Sampling(temperature=1.0, presence_penalty=1, frequency_penalty=0.5, seed=5, max_tokens=20),
    Sampling(temperature=2.0, seed=6, max_tokens=20, min_tokens=10, stop_ids=frozenset({5, 9})),
]
PROMPTS = [tuple(1 + (i * 7 + j * j) % (VOCAB - 1) for j in range(1 + 5 * i)) for i in range(8)]


def run(engine: Engine) -> dict[int, list[int]]:
    """Everything to its end; tokens by request, stop tokens included."""
    tokens: dict[int, list[int]] = {}
    while not engine.idle:
        for event in engine.step():
            assert event.error is None
            if event.token is not None:
                tokens.setdefault(event.request, []).append(event.token)
        engine.check()
    return tokens


@pytest.mark.parametrize("windows", [(), (6,), (1, 13)])
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("step_tokens", [1, 7, 64])
def test_together_is_as_alone_in_any_chunks(
    step_tokens: int, recurrent: bool, windows: tuple[int, ...]
) -> None:
    engine, model = make_engine(
        step_tokens=step_tokens, recurrent=recurrent, blocks=200, windows=windows
    )
    ids = [engine.submit(Request(p, s)) for p, s in zip(PROMPTS, MIXED, strict=True)]
    together = run(engine)
    assert model.batches
    assert max(tokens for tokens, _ in model.batches) <= step_tokens
    for id, prompt, sampling in zip(ids, PROMPTS, MIXED, strict=True):
        assert together[id] == truth(prompt, sampling, recurrent=recurrent)


@pytest.mark.parametrize("windows", [(), (5,)])
@pytest.mark.parametrize("recurrent", [False, True])
def test_preemption_changes_no_token(recurrent: bool, windows: tuple[int, ...]) -> None:
    engine, _ = make_engine(blocks=16, recurrent=recurrent, step_tokens=9, windows=windows)
    ids = [engine.submit(Request(p, s)) for p, s in zip(PROMPTS, MIXED, strict=True)]
    together = run(engine)
    assert engine.status()["preemptions"] > 1
    assert engine.status()["kv_blocks_used"] == 0
    for id, prompt, sampling in zip(ids, PROMPTS, MIXED, strict=True):
        assert together[id] == truth(prompt, sampling, recurrent=recurrent)


@settings(max_examples=25)
@given(
    data=st.data(),
    blocks=st.integers(8, 24),
    block_tokens=st.integers(1, 6),
    step_tokens=st.integers(1, 12),
    sequences=st.integers(1, 5),
    recurrent=st.booleans(),
    windows=st.sets(st.integers(1, 20), max_size=2),
)
def test_any_interleaving_gives_each_sequence_its_own_tokens(
    data: st.DataObject,
    blocks: int,
    block_tokens: int,
    step_tokens: int,
    sequences: int,
    recurrent: bool,
    windows: set[int],
) -> None:
    engine, _ = make_engine(
        blocks=blocks,
        block_tokens=block_tokens,
        step_tokens=step_tokens,
        sequences=sequences,
        recurrent=recurrent,
        windows=tuple(sorted(windows)),
    )
    told: dict[int, list[int]] = {}
    asked: dict[int, tuple[tuple[int, ...], Sampling]] = {}
    cancelled: set[int] = set()
    finished: set[int] = set()

    def step() -> None:
        for event in engine.step():
            assert event.request not in finished
            if event.token is not None:
                told.setdefault(event.request, []).append(event.token)
            if event.finish:
                finished.add(event.request)
        engine.check()

    prompts = st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=engine.context - 1)
    for _ in range(data.draw(st.integers(1, 6))):
        prompt = tuple(data.draw(prompts))
        sampling = Sampling(
            temperature=1.0, seed=len(prompt), max_tokens=data.draw(st.integers(1, 9))
        )
        asked[engine.submit(Request(prompt, sampling))] = prompt, sampling
        for _ in range(data.draw(st.integers(0, 4))):
            step()
        if data.draw(st.integers(0, 4)) == 0:
            id = data.draw(st.sampled_from(sorted(asked)))
            if id not in finished:
                cancelled.add(id)
            engine.cancel(RequestId(id))
    while not engine.idle:
        step()
    assert finished == set(asked)
    for id, (prompt, sampling) in asked.items():
        full = truth(prompt, sampling, recurrent=recurrent, context=engine.context)
        assert told.get(id, []) == (full[: len(told.get(id, []))] if id in cancelled else full)
    status = engine.status()
    assert status["kv_blocks_used"] == status["state_slots_used"] == 0


def test_generate_leaves_the_stop_token_out_and_other_requests_alone() -> None:
    engine, _ = make_engine(blocks=200)
    other = engine.submit(Request(PROMPTS[2], MIXED[0]))
    sampling = Sampling(temperature=1.0, seed=12, stop_ids=frozenset(range(0, VOCAB, 9)))
    expected = truth(PROMPTS[3], sampling)
    assert expected[-1] % 9 == 0
    assert engine.generate(PROMPTS[3], sampling) == expected[:-1]
    assert run(engine)[other] == truth(PROMPTS[2], MIXED[0])
    greedy = Sampling(temperature=0, max_tokens=5, ignore_eos=True)
    assert engine.generate(list(PROMPTS[1]), greedy) == truth(PROMPTS[1], greedy)


def test_score_is_the_logits_after_every_token() -> None:
    for step_tokens, recurrent in itertools.product((1, 5, 100), (False, True)):
        engine, _ = make_engine(step_tokens=step_tokens, recurrent=recurrent)
        engine.generate(PROMPTS[5], MIXED[0])  # leaves something behind in blocks and slots
        tokens = PROMPTS[4]
        expected = [
            logits_after(tokens[: i + 1], state_of(tokens[: i + 1], recurrent=recurrent))
            for i in range(len(tokens))
        ]
        scores = engine.score(tokens)
        assert scores.dtype == np.float32
        np.testing.assert_array_equal(scores, np.array(expected))
        engine.check()


def test_score_needs_free_blocks_and_known_tokens() -> None:
    engine, _ = make_engine(blocks=8, sequences=2)
    engine.submit(Request((1,) * 20))
    engine.step()
    with pytest.raises(CapacityError, match=r"20 tokens need 5 KV blocks and 3 are free") as raised:
        engine.score([1] * 20)
    assert raised.value.retry_s is not None
    for wrong in ([], [VOCAB], [1] * 33):
        with pytest.raises(HeadraceError):
            engine.score(wrong)
    assert engine.score([1] * 12).shape == (12, VOCAB)
    engine.check()


def test_cancel_in_any_phase_frees_everything() -> None:
    engine, _ = make_engine(step_tokens=4, sequences=2)
    ids = [engine.submit(Request((3,) * 10)) for _ in range(3)]
    engine.step()
    for id in reversed(ids):  # waiting, in its prompt, in its prompt
        engine.cancel(id)
    engine.cancel(ids[0])  # again: no second event
    engine.check()
    assert not engine.idle
    events = engine.step()
    assert [(e.request, e.token, e.finish) for e in events] == [
        (id, None, Finish.CANCELLED) for id in reversed(ids)
    ]
    assert engine.idle
    assert engine.status()["kv_blocks_used"] == 0
    assert engine.status()["requests"]["cancelled"] == 3


def test_a_failed_step_ends_its_requests_and_not_the_engine() -> None:
    engine, model = make_engine(step_tokens=8, sequences=1)
    first, second = engine.submit(Request((7, 13))), engine.submit(Request((8,), MIXED[0]))
    model.fail_when = 13
    (event,) = engine.step()
    assert (event.request, event.finish) == (first, Finish.ERROR)
    assert isinstance(event.error, DeviceError)
    assert "this token hurts" in str(event.error)
    engine.check()
    model.fail_when = None
    assert run(engine)[second] == truth((8,), MIXED[0])
    model.fail_when = 13
    with pytest.raises(DeviceError, match="this token hurts"):
        engine.generate((13,))
    assert engine.idle


@pytest.mark.parametrize("recurrent", [False, True])
def test_whichever_step_fails_the_others_lose_nothing(recurrent: bool) -> None:
    sampling = Sampling(temperature=1.0, seed=3, max_tokens=6)
    prompts = [(3,) * 9, (4,) * 2, (5,) * 14, (6,)]
    expected = [truth(p, sampling, recurrent=recurrent) for p in prompts]
    failed = 0
    for n in itertools.count():
        # So small that the failing step may also be one that preempts or begins again.
        engine, model = make_engine(
            blocks=6, step_tokens=5, sequences=3, recurrent=recurrent, context=20
        )
        ids = [engine.submit(Request(p, sampling)) for p in prompts]
        told: dict[int, list[int]] = {id: [] for id in ids}
        errors: set[int] = set()
        for i in itertools.count():
            if engine.idle:
                break
            model.fail_always = i == n
            for event in engine.step():
                if event.finish is Finish.ERROR:
                    errors.add(event.request)
                elif event.token is not None:
                    told[event.request].append(event.token)
            engine.check()
        assert engine.status()["kv_blocks_used"] == 0
        for id, tokens in zip(ids, expected, strict=True):
            assert told[id] == (tokens[: len(told[id])] if id in errors else tokens)
        failed += len(errors)
        if not errors:
            break
    assert failed > n  # at least one in every round but the last


def test_a_closed_engine_says_so() -> None:
    closed: list[int] = []
    engine, _ = make_engine()
    engine._on_close = lambda: closed.append(1)
    engine.submit(Request((1,)))
    engine.close()
    engine.close()
    assert closed == [1]
    with pytest.raises(DeviceError, match="closed"):
        engine.submit(Request((1,)))
    with pytest.raises(DeviceError, match="closed"):
        engine.score([1])


def test_refusals_leave_no_trace() -> None:
    engine, _ = make_engine(max_queued=0, sequences=1, blocks=4)
    with pytest.raises(CapacityError):
        engine.submit(Request((1,) * 16))
    with pytest.raises(RequestError):
        engine.submit(Request((1,), Sampling(top_p=7)))
    engine.submit(Request((1,), MIXED[1]))
    with pytest.raises(CapacityError):
        engine.submit(Request((1,)))
    engine.check()
    assert len(run(engine)) == 1


class Clock:
    """Seconds as the test says."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


def test_metrics_count_what_happened() -> None:
    engine, _ = make_engine(step_tokens=4)
    sampling = Sampling(temperature=0, ignore_eos=True, max_tokens=3)
    engine.generate((1,) * 6, sampling)
    with pytest.raises(RequestError):
        engine.generate((), sampling)
    status = engine.status()
    assert status["requests"] == {"stop": 0, "length": 1, "cancelled": 0, "error": 0}
    assert (status["prompt_tokens"], status["generated_tokens"]) == (6, 3)
    assert status["step_tokens"]["count"] == 4  # 4 + 2 tokens of the prompt, 1, 1
    assert status["step_tokens"]["sum"] == 8
    assert [n for bound, n in status["step_tokens"]["buckets"] if bound <= 4] == [2, 3, 4]
    assert status["first_token_seconds"]["count"] == 1
    assert status["next_token_seconds"]["count"] == 2
    assert status["step_seconds"]["count"] == 4
    assert status["plan"]["context"] == {"value": engine.context, "reason": "test"}


def test_times_are_those_of_the_clock() -> None:
    from headrace.engine.metrics import Metrics

    clock = Clock()
    metrics = Metrics(clock)
    id = RequestId(1)
    metrics.submitted(id, 5)  # 0.25
    metrics.happened([TokenEvent(id, 4)])  # 0.5
    metrics.happened([])
    metrics.happened([TokenEvent(id, END, Finish.STOP)])  # 1.0
    snapshot = metrics.snapshot()
    assert snapshot["first_token_seconds"]["sum"] == 0.25
    assert snapshot["next_token_seconds"]["sum"] == 0.5
    assert snapshot["requests"]["stop"] == 1
