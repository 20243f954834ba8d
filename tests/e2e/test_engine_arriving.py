"""Requests are served while experts arrive: the same bits, and captured steps once all are here."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from engines import answers, built, in_memory, load

from headrace.engine.engine import Engine
from headrace.engine.request import Request, Sampling
from headrace.errors import CheckpointError
from headrace.experts.arriving import Arriving

PROMPTS = [tuple(3 + (i * 37 + j * j * 11) % 120 for j in range(3 + 7 * i)) for i in range(4)]
REQUESTS = [Request(p, Sampling(temperature=0, max_tokens=12, ignore_eos=True)) for p in PROMPTS]
BESIDE = {"experts.arrive": "beside"}


@pytest.fixture(scope="module", params=["qwen3_moe-dense-tied-linear", "gpt_oss", "qwen3_5_moe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(request.param, tmp_path_factory)


def placement_of(engine: Engine) -> Arriving:
    placement = engine.live._built.placement
    assert isinstance(placement, Arriving)
    return placement


def test_the_same_bits_while_they_arrive_and_later(folder: Path) -> None:
    logits, truth = in_memory(folder, REQUESTS)
    engine = load(folder, **BESIDE)
    assert answers(engine, REQUESTS) == truth
    deadline = time.monotonic() + 60
    while not placement_of(engine).whole:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert np.array_equal(engine.score(PROMPTS[-1]), logits)
    assert answers(engine, REQUESTS) == truth
    assert engine.live._built.graphs.sizes  # decode steps are captured again
    assert placement_of(engine).status()["resident"] == placement_of(engine).status()["rows"]
    engine.close()


def test_rows_on_demand_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, truth = in_memory(folder, REQUESTS)
    monkeypatch.setattr(Arriving, "_fill", lambda self: None)
    engine = load(folder, **BESIDE)
    assert np.array_equal(engine.score(PROMPTS[-1]), logits)
    assert answers(engine, REQUESTS) == truth
    placement = placement_of(engine)
    assert placement.waited == placement.status()["resident"] > 0
    engine.close()


def test_a_file_cut_short_fails_requests_and_not_the_engine(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built("qwen3_moe", tmp_path_factory)
    (file,) = folder.glob("*.safetensors")
    whole = file.read_bytes()
    engine = load(folder)
    truth = answers(engine, REQUESTS)
    engine.close()
    monkeypatch.setattr(Arriving, "_fill", lambda self: None)
    engine = load(folder, **BESIDE)
    with file.open("r+b") as cut:
        cut.truncate(4096)
    engine.submit(REQUESTS[1])
    errors = []
    while not engine.idle:
        errors += [event.error for event in engine.step()]
    assert [type(error) for error in errors] == [CheckpointError]
    file.write_bytes(whole)
    assert answers(engine, REQUESTS) == truth
    engine.close()


def test_closing_while_they_arrive(folder: Path) -> None:
    engine = load(folder, **BESIDE)
    engine.close()
    engine.close()
