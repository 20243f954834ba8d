"""Conversations through the real engine, prefix cache on and off: the same bits, less work."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from engines import built, load

from headrace.cache.anchors import Cuts
from headrace.engine.engine import Engine
from headrace.engine.request import Request, RequestId, Sampling

FAMILIES = [
    "mixtral",
    "gpt_oss",
    "qwen3_5_moe",
    "mixtral-window-llama3",
    "lfm2_moe",
    "nemotron_h",
    "kimi_linear",
    "deepseek_v3",
    "gemma4",
    "llama4",
]
VOCAB = tiny.VOCAB
SIZE = 4
Said = tuple[list[int], list[object]]  # tokens, and their log probabilities to the bit


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(request.param, tmp_path_factory)


def talk(engine: Engine, requests: list[Request]) -> list[Said]:
    ids = [engine.submit(request) for request in requests]
    return [gathered[id] for gathered in [gather(engine)] for id in ids]


def gather(engine: Engine) -> dict[RequestId, Said]:
    said: dict[RequestId, Said] = {}
    while not engine.idle:
        for event in engine.step():
            assert event.error is None
            tokens, logprobs = said.setdefault(event.request, ([], []))
            if event.token is not None:
                tokens.append(event.token)
                logprobs.append(event.logprob)
        engine.check()
    return said


def computed(engine: Engine) -> int:
    return int(engine.status()["step_tokens"]["sum"])


def conversation(seed: int) -> tuple[random.Random, list[int]]:
    rng = random.Random(seed)
    return rng, [3 + (7 * i) % (VOCAB - 3) for i in range(rng.choice((0, 13, 26)))]


def words(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(n)]


def ask(tokens: list[int], anchors: list[int], seed: int) -> Request:
    sampling = Sampling(temperature=0.8, seed=seed, max_tokens=7, ignore_eos=True, logprobs=5)
    return Request(tuple(tokens), sampling, anchors=tuple(anchors))


class Talks:
    """Some conversations that go on in turns: appended to, edited in the middle, cut short."""

    def __init__(self, n: int) -> None:
        self.state = [conversation(seed) for seed in range(n)]
        self.anchors: list[list[int]] = [[] for _ in range(n)]

    def turn(self, i: int, number: int) -> Request:
        rng, tokens = self.state[i]
        self.anchors[i].append(len(tokens))
        tokens += words(rng, rng.randrange(1, 17))
        self.anchors[i].append(len(tokens))
        tokens += words(rng, 2)
        return ask(tokens, self.anchors[i], 10 * number + i)

    def answered(self, i: int, answer: list[int]) -> None:
        rng, tokens = self.state[i]
        kind = rng.randrange(5)
        tokens += answer
        if kind == 0:  # its thinking is dropped
            del tokens[-5:-2]
        elif kind == 1 and len(tokens) > 20:  # an edit that respects no boundary
            tokens[rng.randrange(len(tokens))] = 5
        elif kind == 2:  # taken back
            del tokens[-rng.randrange(1, len(tokens)) :]
        if len(tokens) > 150:
            del tokens[60:]
        self.anchors[i] = [a for a in self.anchors[i] if a < len(tokens)]


def hold(engine: Engine, plain: Engine, *, turns: int, resizes: bool = False) -> None:
    """The same conversations with both; the same is said."""
    talks, rng = Talks(4), random.Random(0)
    for number in range(turns):
        who = rng.sample(range(4), rng.randrange(1, 5))
        requests = [talks.turn(i, number) for i in who]
        expected = talk(plain, requests)
        doomed = engine.submit(replace(requests[0], sampling=Sampling(seed=1, ignore_eos=True)))
        for _ in range(rng.randrange(4)):
            for event in engine.step():
                assert event.error is None
        engine.cancel(doomed)
        engine.check()
        assert talk(engine, requests) == expected
        for i, (tokens, _) in zip(who, expected, strict=True):
            talks.answered(i, tokens)
        if resizes:
            asked = {"kv_tokens": rng.choice((256, 300, 400))}
            if engine.status()["state_slots_total"]:
                asked["state_slots"] = rng.choice((2, 5, 8))
            engine.live.ask(asked)
            engine.check()


@pytest.mark.parametrize("step_tokens", [64, 5])
def test_cached_or_not_the_same_is_said(folder: Path, step_tokens: int) -> None:
    engine = load(folder, **{"schedule.step_tokens": step_tokens})
    plain = load(folder, **{"memory.prefix_cache": "off"})
    hold(engine, plain, turns=12)
    status = engine.status()
    assert status["prefix_hits"] > 12
    assert computed(engine) < 0.8 * computed(plain)
    assert status["kv_blocks_used"] == status["state_slots_used"] == 0
    assert plain.status()["cached_tokens"] == plain.status()["kv_blocks_cached"] == 0
    engine.close()
    plain.close()


def test_in_a_tiny_pool(folder: Path) -> None:
    from headrace.models.source import open_model

    nbytes = 70 * SIZE * open_model(folder).facts.kv_bytes_per_token(4)
    if not nbytes:
        pytest.skip("nothing grows with the context")
    keys = {"memory.kv_bytes": nbytes, "schedule.max_sequences": 3, "schedule.step_tokens": 24}
    engine = load(folder, **keys)
    plain = load(folder, **{"memory.prefix_cache": "off"})
    hold(engine, plain, turns=14)
    assert engine.status()["prefix_evictions"] > 0
    engine.close()
    plain.close()


def test_on_a_device_that_is_resized(folder: Path) -> None:
    device = {"device": "emulated", "emulated.memory": "64MiB", "experts.placement": "hybrid"}
    engine = load(folder, **device, **{"experts.fill": "all", "experts.cache": "30%"})
    plain = load(folder, **{"memory.prefix_cache": "off"})
    hold(engine, plain, turns=8, resizes=True)
    assert engine.live.status()["resizes"] >= 1
    assert engine.status()["prefix_hits"] > 6
    engine.close()
    plain.close()


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_what_leaves_the_device_comes_back(folder: Path, clock: str) -> None:
    from headrace.models.source import open_model

    facts = open_model(folder).facts
    if not facts.kv_bytes_per_token(4):
        pytest.skip("nothing grows with the context")
    keys = {
        "device": "emulated",
        "emulated.memory": "64MiB",
        "emulated.clock": clock,
        "experts.placement": "hybrid",
        "experts.cache": "50%",
        "schedule.max_sequences": 2,
        "memory.kv_bytes": 64 * SIZE * facts.kv_bytes_per_token(4),
        "context": 160,
        "memory.host_cache": 8 << 20,
    }
    if clock == "virtual":
        keys["emulated.machine"] = "rtx4060-laptop"
    engine = load(folder, **keys)
    plain = load(folder, **{"memory.prefix_cache": "off"})
    hold(engine, plain, turns=12, resizes=False)
    tier = engine.status()["host_tier"]
    assert tier["spilled_blocks"] > 20
    assert tier["returned_blocks"] > 20
    used, states = tier["blocks_used"], {}
    if engine.status()["state_slots_total"]:
        assert tier["states_used"] > 0
        states = {"host_states": 1}
    engine.live.ask({"host_kv_tokens": used // 2 * SIZE, **states})
    engine.check()
    assert engine.status()["host_tier"]["blocks_total"] == used // 2
    assert engine.status()["host_tier"]["states_used"] <= 1
    hold(engine, plain, turns=3)
    engine.close()
    plain.close()


def test_a_second_turn_costs_what_is_new(folder: Path) -> None:
    engine = load(folder)
    first = words(random.Random(1), 90)
    ((answer, _),) = talk(engine, [ask(first, [0, 40, 88], 1)])
    before = computed(engine)
    again = [*first, *answer, *words(random.Random(2), 11)]
    id = engine.submit(ask(again, [0, 40, 88, 97, 106], 2))
    cached = [event.cached for event in engine.step() if event.request == id]
    gather(engine)
    # The last token of an answer is drawn, not computed; so is that of the second one.
    assert computed(engine) - before == len(again) - (len(first) + len(answer) - 1) + 6
    assert set(cached) <= {len(first) + len(answer) - 1}
    assert engine.status()["cached_tokens"] == len(first) + len(answer) - 1
    engine.close()


def test_an_edit_costs_what_lies_behind_it(folder: Path) -> None:
    engine = load(folder)
    recurrent = engine.status()["state_slots_total"] > 0
    first, anchors = words(random.Random(1), 120), [0, 30, 84, 118]
    talk(engine, [ask(first, anchors, 1)])
    edited = [*first[:100], *words(random.Random(3), 20)]
    before = engine.status()["cached_tokens"]
    talk(engine, [ask(edited, anchors, 2)])
    kept = max(a for a in Cuts(120, anchors).positions if a <= 100) if recurrent else 100
    assert kept in (84, 100)
    assert engine.status()["cached_tokens"] - before == kept
    engine.close()
