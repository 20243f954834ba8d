"""The recorder listens to the experts of a model, step by step, within its bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.engine.recorder import Recorder
from headrace.engine.step import Span, Step
from headrace.errors import CapacityError, RequestError
from headrace.ops.table import Routing
from headrace.planning.trace import NONE, TraceModel

MODEL = TraceModel("tiny", (4, 0, 6), (2, 0, 3), (100, 0, 120))


def span(length: int, start: int) -> Span:
    return Span("r", tuple(range(length)), start, (1,), -1, True)  # type: ignore[arg-type]


def inner(layer: int, x_TD: Tensor, routing: Routing) -> Tensor:
    return x_TD + layer


def routed(seed: int, tokens: int, layer: int) -> Routing:
    rng = np.random.default_rng([seed, layer])
    experts, top_k = MODEL.experts[layer], MODEL.top_k[layer]
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)])
    return Routing(torch.from_numpy(ids.astype(np.int32)), torch.ones(tokens, top_k))


def run(recorder: Recorder, step: Step, seed: int, *, fails: bool = False) -> None:
    experts = recorder.experts(inner)
    recorder.begin_step(step)
    x = torch.zeros(step.tokens, 5)
    for layer in (0, 2):
        y = experts(layer, x, routed(seed, step.tokens, layer))
        assert torch.equal(y, x + layer)
    recorder.end_step(failed=fails)


def test_what_was_routed_is_kept() -> None:
    recorder = Recorder(MODEL)
    run(recorder, Step((span(1, 3),)), 0)  # off: not kept
    recorder.start()
    run(recorder, Step((span(1, 4), span(3, 0))), 1)
    run(recorder, Step((span(1, 5), span(1, 3))), 2)
    run(recorder, Step((span(1, 6),)), 3, fails=True)
    run(recorder, Step((span(1, 0),)), 4)
    trace = recorder.stop()
    assert trace.lengths.tolist() == [4, 2, 1]
    assert trace.prefill.tolist() == [False, True, True, True, False, False, True]
    assert trace.ids[:4, 0, :2].tolist() == routed(1, 4, 0).ids_TX.tolist()
    assert trace.ids[4:6, 1].tolist() == routed(2, 2, 2).ids_TX.tolist()
    assert trace.ids[6, 1].tolist() == routed(4, 1, 2).ids_TX[0].tolist()
    assert (trace.ids[:, 0, 2] == NONE).all()


def test_it_stops_when_full() -> None:
    recorder = Recorder(MODEL)
    recorder.start(most_tokens=3)
    run(recorder, Step((span(2, 0),)), 1)
    assert (recorder.recording, recorder.full) == (True, False)
    run(recorder, Step((span(2, 2),)), 2)  # would be four
    assert (recorder.recording, recorder.full) == (False, True)
    run(recorder, Step((span(1, 4),)), 3)
    assert recorder.stop().tokens == 2
    assert not recorder.full
    recorder.start(most_tokens=1)
    run(recorder, Step((span(1, 9),)), 4)
    assert recorder.full
    assert recorder.stop().tokens == 1


def test_nothing_recorded_is_an_empty_trace() -> None:
    recorder = Recorder(MODEL)
    recorder.start()
    trace = recorder.stop()
    assert (trace.tokens, trace.ids.shape) == (0, (0, 2, 3))


def test_wrong_order_and_nonsense_are_refused() -> None:
    recorder = Recorder(MODEL)
    with pytest.raises(RequestError, match="no trace"):
        recorder.stop()
    with pytest.raises(CapacityError, match="1 to"):
        recorder.start(0)
    recorder.start()
    with pytest.raises(RequestError, match="being recorded"):
        recorder.start()


def test_a_stop_within_a_step_leaves_that_step_out() -> None:
    recorder = Recorder(MODEL)
    recorder.start()
    run(recorder, Step((span(1, 3),)), 1)
    recorder.begin_step(Step((span(1, 4),)))
    trace = recorder.stop()
    recorder.end_step()
    assert trace.tokens == 1
    assert not recorder.recording
