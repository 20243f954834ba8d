"""Tiny checkpoints through the real engine: the same tokens alone, batched, cut and preempted.

The truth is `transformers` for greedy requests and for logits, and the engine with one request at a
time for the others.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from engines import answers

import headrace
from headrace.engine.client import EngineClient
from headrace.engine.engine import Engine
from headrace.engine.request import Finish, Request, Sampling
from headrace.errors import CapacityError, CheckpointError, ConfigError

FAMILIES = [
    "mixtral",
    "qwen3_moe-dense-tied-linear",
    "gpt_oss",
    "qwen3_5_moe",
    "glm4_moe",
    "exaone_moe",
    "deepseek_v3",
]
VOCAB = tiny.VOCAB
REQUESTS = [
    Request(
        tuple(3 + (i * 37 + j * j * 11 + j) % (VOCAB - 3) for j in range(1 + 6 * i)),
        Sampling(seed=i, max_tokens=16, ignore_eos=True, **how),  # type: ignore[arg-type]
    )
    for i, how in enumerate(
        [
            {"temperature": 0},
            {"temperature": 1.0},
            {"temperature": 0.7, "top_k": 20},
            {"temperature": 1.2, "top_p": 0.9},
            {"temperature": 0, "repetition_penalty": 1.3},
            {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 0.7},
            {"temperature": 0, "logprobs": 3},
            {"temperature": 2.0, "logit_bias": {5: 4.0}},
        ]
    )
]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, the `transformers` model)"""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, tiny.build(request.param, folder)


@pytest.fixture
def load() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def load(folder: Path, **keys: object) -> Engine:
        keys = {"threads": 1, "memory.block_tokens": 4, **keys}
        engines.append(headrace.load(folder, headrace.EngineConfig.of(**keys)))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


def test_batched_cut_and_preempted_as_alone(model: Any, load: Callable[..., Engine]) -> None:
    folder, oracle = model
    alone_engine = load(folder)
    alone = [answers(alone_engine, [request])[0] for request in REQUESTS]
    greedy = REQUESTS[0]
    oracle.generation_config.eos_token_id = None
    with torch.inference_mode():
        prompt = torch.tensor([greedy.tokens])
        said = oracle.generate(prompt, max_new_tokens=16, do_sample=False)
    assert alone[0] == said[0, len(greedy.tokens) :].tolist()
    assert len({tuple(tokens) for tokens in alone}) == len(alone)
    tight = {"memory.kv_bytes": _bytes_of(folder, blocks=24), "schedule.step_tokens": 16}
    for keys in (
        {"schedule.step_tokens": 64},
        {"schedule.step_tokens": 7},
        {"schedule.step_tokens": 1},
        {"schedule.max_sequences": 3, "schedule.step_tokens": 20},
        # With windows in all layers nothing grows, and nothing runs short.
        *([tight] if tight["memory.kv_bytes"] else []),
    ):
        engine = load(folder, **keys)
        assert answers(engine, REQUESTS) == alone, keys
        status = engine.status()
        assert (status["preemptions"] > 0) == ("memory.kv_bytes" in keys)
        assert status["kv_blocks_used"] == status["state_slots_used"] == 0


def _bytes_of(folder: Path, *, blocks: int) -> int:
    from headrace.models.source import open_model

    return blocks * 4 * open_model(folder).facts.kv_bytes_per_token(4)


def test_score_is_what_transformers_computes(model: Any, load: Callable[..., Engine]) -> None:
    folder, oracle = model
    tokens = [3 + (5 * j * j + j) % (VOCAB - 3) for j in range(61)]
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0].numpy()
    for step_tokens in (512, 7):
        scores = load(folder, **{"schedule.step_tokens": step_tokens}).score(tokens)
        assert scores.dtype == np.float32
        assert np.abs(scores - expected).max() <= 1e-4 * np.abs(expected).max()


def test_a_served_model_survives_cancels_and_failures(
    model: Any, load: Callable[..., Engine]
) -> None:
    folder, _ = model
    engine = load(folder)
    expected = answers(engine, [REQUESTS[3]])[0]
    client = EngineClient(engine)
    endless = Sampling(temperature=0, ignore_eos=True)
    doomed = [client.submit(Request((5, 6, 7 + i), endless)) for i in range(4)]
    wanted = client.submit(REQUESTS[3])
    for stream in doomed:
        stream.cancel()
    assert [event.token for event in wanted] == expected
    assert {list(stream)[-1].finish for stream in doomed} <= {Finish.CANCELLED, Finish.LENGTH}
    assert client.status()["kv_blocks_used"] == 0
    client.close()
    engine.check()


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixtral")
    tiny.build("mixtral", folder)
    return folder


def test_end_tokens_come_from_the_checkpoint(mixtral: Path, load: Callable[..., Engine]) -> None:
    engine = load(mixtral)
    assert engine.end_ids == {2}
    assert engine.vocab == VOCAB
    first = engine.generate((9, 8, 7), Sampling(temperature=0, max_tokens=6))
    second = Sampling(temperature=0, max_tokens=6, stop_ids=frozenset({first[3]}))
    assert engine.generate((9, 8, 7), second) == first[: first.index(first[3])]


def test_what_cannot_be_served_is_said_before_weights_are_read(
    mixtral: Path, tmp_path: Path, load: Callable[..., Engine]
) -> None:
    with pytest.raises(ConfigError, match=r"context = 257.*at most 256"):
        load(mixtral, context=257)
    with pytest.raises(CapacityError, match=r"context = 200.*at most \d+"):
        load(mixtral, context=200, **{"memory.kv_bytes": _bytes_of(mixtral, blocks=10)})
    with pytest.raises(CheckpointError, match="does not exist"):
        load(tmp_path / "nothing")
    engine = load(mixtral, context=20)
    with pytest.raises(CapacityError, match=r"20 tokens.*at most 19"):
        engine.generate([5] * 20)
    assert len(engine.generate([5] * 15, Sampling(temperature=0, ignore_eos=True))) == 5


def _edit_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def _halve(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), r"config\.json"),
    "torn config": (lambda d: (d / "config.json").write_text('{"a": '), r"config\.json"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "safetensors"),
    "half the weights": (_halve, r"model\.safetensors"),
    "unknown architecture": (
        lambda d: _edit_config(d, model_type="gpt9", architectures=["Gpt9ForCausalLM"]),
        r"(?i)gpt9.*mixtral",
    ),
    "another shape": (lambda d: _edit_config(d, hidden_size=48), "48"),
    "torn generation config": (
        lambda d: (d / "generation_config.json").write_text("["),
        r"generation_config\.json",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_checkpoints_are_named(mixtral: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(mixtral, folder)
    damage, said = BROKEN[kind]
    damage(folder)
    with pytest.raises(CheckpointError, match=said):
        headrace.load(folder)


def test_weights_that_vanish_while_they_are_read(mixtral: Path, tmp_path: Path) -> None:
    from headrace.engine.opening import open_engine

    folder = tmp_path / "model"
    shutil.copytree(mixtral, folder)
    opening = open_engine(folder, headrace.EngineConfig.of(threads=1))
    opening.reading.wait()
    _halve(folder)
    late = dataclasses.replace(opening, reading=opening.source.read())
    with pytest.raises(CheckpointError, match=r"model\.safetensors|read"):
        Engine.start(late)


def test_bfloat16_keys_and_values(mixtral: Path, load: Callable[..., Engine]) -> None:
    rounded, exact = load(mixtral, dtype="bfloat16"), load(mixtral)
    tokens = [3 + 7 * j % (VOCAB - 3) for j in range(40)]
    difference = np.abs(rounded.score(tokens) - exact.score(tokens)).max()
    assert 0 < difference < 0.05 * np.abs(exact.score(tokens)).max()
    assert rounded.plan.memory.kv_bytes * 2 == exact.plan.memory.kv_bytes


def test_progress_ends_at_all_bytes(mixtral: Path) -> None:
    seen: list[tuple[int, int]] = []
    config = headrace.EngineConfig.of(threads=1)
    engine = headrace.load(mixtral, config, progress=lambda *at: seen.append(at))
    engine.close()
    assert seen
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 100_000
