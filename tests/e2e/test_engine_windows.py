"""Layers with a window through the real engine: their memory does not grow with the context, and
nothing else is said for it. Truth: `transformers`, with contexts many times the window.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from engines import load

from headrace.engine.request import Request, Sampling
from headrace.errors import CapacityError
from headrace.models.source import open_model

WINDOW, SIZE = 7, 4
EACH = -(-(WINDOW - 1) // SIZE) + 1  # blocks that a sequence holds between two steps


@pytest.fixture(scope="module", params=["gpt_oss", "mixtral-window-llama3", "gemma4", "llama4"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, the `transformers` model)"""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, tiny.build(request.param, folder)


def words(seed: int, n: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(n)]


def test_a_long_context_as_transformers_computes_it(model: Any) -> None:
    folder, oracle = model
    tokens = words(1, 230)
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0].numpy()
    for step_tokens in (64, 9):
        engine = load(folder, **{"schedule.step_tokens": step_tokens})
        scores = engine.score(tokens)
        assert np.abs(scores - expected).max() <= 1e-4 * np.abs(expected).max()
        engine.check()
        assert engine.status()["windows"][0]["blocks_used"] == 0
        engine.close()


def test_a_long_answer_as_transformers_gives_it(model: Any) -> None:
    folder, oracle = model
    oracle.generation_config.eos_token_id = None
    prompt = words(2, 90)
    with torch.inference_mode():
        said = oracle.generate(torch.tensor([prompt]), max_new_tokens=140, do_sample=False)
    engine = load(folder, **{"schedule.step_tokens": 16})
    greedy = Sampling(temperature=0, max_tokens=140, ignore_eos=True)
    assert engine.generate(prompt, greedy) == said[0, len(prompt) :].tolist()
    # From a state that was saved on the way, far from where the windows began.
    again = [*prompt, *said[0, len(prompt) : len(prompt) + 60].tolist()]
    before = engine.status()["cached_tokens"]
    assert engine.generate(again, greedy)[:50] == said[0, len(again) : len(again) + 50].tolist()
    assert engine.status()["cached_tokens"] - before >= len(prompt)
    engine.close()


@pytest.mark.parametrize("reuse", ["on", "off"])
def test_blocks_in_use_do_not_grow(model: Any, reuse: str) -> None:
    folder, _ = model
    engine = load(folder, **{"schedule.step_tokens": 16, "memory.prefix_cache": reuse})
    endless = Sampling(temperature=0, ignore_eos=True, max_tokens=120)
    for i in range(3):
        engine.submit(Request(tuple(words(i, 100)), endless))
    most = 0
    while not engine.idle:
        engine.step()
        engine.check()
        status = engine.status()
        held = status["windows"][0]["blocks_used"]
        saved = status["state_slots_cached"]
        assert held <= EACH * (3 + saved)
        most = max(most, held - EACH * saved)
    assert most > EACH
    status = engine.status()
    assert status["windows"][0]["blocks_used"] <= EACH * status["state_slots_cached"]
    assert (status["state_slots_cached"] > 0) == (reuse == "on")
    engine.close()


def test_memory_that_windows_save_holds_more_tokens(model: Any) -> None:
    folder, _ = model
    facts = open_model(folder).facts
    wide = facts.within(1)  # as if all layers looked back at everything
    assert not wide.window_elements()
    assert facts.kv_bytes_per_token(4) < wide.kv_bytes_per_token(4)
    engine = load(folder, **{"schedule.max_sequences": 3, "memory.prefix_cache": "off"})
    memory, slots = engine.plan.memory, 3
    per_token = facts.window_elements()[WINDOW] * 4
    assert memory.state_slots == slots
    assert memory.state_bytes == slots * (EACH + 1) * SIZE * per_token
    assert memory.kv_bytes == memory.kv_tokens * facts.kv_bytes_per_token(4)
    assert engine.status()["windows"][0]["blocks_total"] == slots * (EACH + 1) + 512 // SIZE
    engine.close()


def test_whoever_hangs_up_leaves_nothing_behind(model: Any) -> None:
    folder, _ = model
    engine = load(folder, **{"schedule.step_tokens": 16, "memory.prefix_cache": "off"})
    rng = random.Random(4)
    for turn in range(12):
        ids = [engine.submit(Request(tuple(words(turn + i, 60)), Sampling())) for i in range(3)]
        for _ in range(rng.randrange(9)):
            engine.step()
        for id in ids:
            engine.cancel(id)
            engine.check()
        while not engine.idle:
            engine.step()
        assert engine.status()["windows"][0]["blocks_used"] == 0
    engine.close()


def test_a_window_that_holds_the_context_is_none(model: Any) -> None:
    folder: Path = model[0]
    engine = load(folder, context=WINDOW)
    assert engine.status()["windows"] == []
    assert engine.status()["state_slots_total"] == 0
    assert len(engine.generate([5, 6, 7], Sampling(temperature=0, ignore_eos=True))) == WINDOW - 3
    engine.close()


def test_no_state_slot_is_left_to_score_with(model: Any) -> None:
    folder, _ = model
    engine = load(folder, **{"schedule.max_sequences": 1, "memory.prefix_cache": "off"})
    engine.submit(Request((5, 6, 7), Sampling(temperature=0, max_tokens=9, ignore_eos=True)))
    engine.step()
    with pytest.raises(CapacityError, match="state slots are in use"):
        engine.score([5, 6, 7])
    while not engine.idle:
        engine.step()
    assert engine.score([5, 6, 7]).shape == (3, tiny.VOCAB)
    engine.close()


@pytest.mark.parametrize("placement", ["resident", "hybrid"])
def test_saved_states_on_a_device(model: Any, placement: str) -> None:
    folder, _ = model
    given = {"emulated.memory": "64MiB", "schedule.max_sequences": 1}
    engine = load(folder, device="emulated", **given, **{"experts.placement": placement})
    assert engine.plan.state_slots.value > 1
    greedy = Sampling(temperature=0, max_tokens=8, ignore_eos=True)
    prompt = words(5, 60)
    engine.generate(prompt, greedy)
    engine.generate([*prompt, *words(6, 5)], greedy)
    assert engine.status()["cached_tokens"] == len(prompt)
    engine.close()
