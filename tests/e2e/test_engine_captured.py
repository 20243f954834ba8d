"""Decode on the emulated device with experts elsewhere is captured and replayed: the same bits as
the plain pass while the cache changes, nothing read by the host, nothing made on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engines import built

import headrace
from headrace.device.emulated import EmulatedDevice
from headrace.engine.build import start_device
from headrace.engine.engine import Engine
from headrace.engine.graphs import MOST_SEQUENCES, Graphs
from headrace.engine.logits import Logits
from headrace.engine.opening import open_engine
from headrace.engine.request import Request, Sampling, TokenEvent
from headrace.errors import CapacityError, DeviceError
from headrace.experts.placement import Hybrid
from headrace.models.state import Batch, State

FAMILIES = [
    "mixtral",
    "gpt_oss",
    "olmoe",
    "qwen3_moe-dense-tied-linear",
    "qwen3_5_moe",
    "glm4_moe",
    "exaone_moe",
    "deepseek_v3",
    "qwen3_next",
    "lfm2_moe",
    "nemotron_h",
    "kimi_linear",
    "granitemoehybrid",
    "gemma4",
    "llama4",
    "laguna",
    "cohere2_moe",
]


class Plain(Graphs):
    """Never captures."""

    def forward(self, batch: Batch, state: State) -> Logits:
        return self.plain(batch, state, self.experts)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(request.param, tmp_path_factory)


@contextmanager
def serving(folder: Path, *, capture: bool = True, **experts: object) -> Iterator[Engine]:
    keys = {"placement": "hybrid", "fill": "all", "cache": "40%", **experts}
    config = {f"experts.{name}": value for name, value in keys.items()}
    config |= {"device": "emulated", "emulated.memory": "64MiB", "memory.block_tokens": 4}
    engine = headrace.load(folder, headrace.EngineConfig.of(threads=1, **config))
    if not capture:
        forward = forward_of(engine)
        graphs = forward.graphs
        forward.graphs = Plain(graphs._transformer, graphs.experts, graphs._device)
    try:
        yield engine
    finally:
        engine.close()


def forward_of(engine: Engine):  # type: ignore[no-untyped-def]
    return engine._runner._forward


def device_of(engine: Engine) -> EmulatedDevice:
    device = engine.live._built.device
    assert isinstance(device, EmulatedDevice)
    return device


def hybrid_of(engine: Engine) -> Hybrid:
    placement = engine.live._built.placement
    assert isinstance(placement, Hybrid)
    return placement


def serve(engine: Engine, sequences: int, first: int = 0) -> list[TokenEvent]:
    """All events of so many sequences, the longer prompts answering for longer."""
    for i in range(sequences):
        how = Sampling(temperature=0, logprobs=4, ignore_eos=True, max_tokens=6 + 4 * i)
        engine.submit(Request(tuple(range(3 + first + i, 14 + first + 5 * i)), how))
    events: list[TokenEvent] = []
    while not engine.idle:
        events += engine.step()
    assert all(event.error is None for event in events)
    return events


def test_replays_are_the_plain_pass_while_the_cache_changes(folder: Path) -> None:
    def all_of_it(engine: Engine) -> list[TokenEvent]:
        found = serve(engine, MOST_SEQUENCES)
        rows = engine.live._elastic.limits.rows
        for slots in (1, rows // 2, rows):
            found += serve(engine, 2, first=slots)
            engine.resize(replace(engine.live.budget, expert_slots=slots))
            found += serve(engine, 1, first=slots)
        return found

    with serving(folder, capture=False) as engine:
        expected = all_of_it(engine)
        assert engine.live._built.graphs.sizes == []
        status = hybrid_of(engine).status()
    with serving(folder) as engine:
        found = all_of_it(engine)
        assert engine.live._built.graphs._refused == ""
        assert engine.live._built.graphs.sizes == [1]
        captured = hybrid_of(engine).status()
        hybrid_of(engine).slots.check()
    assert found == expected
    for count in ("decode_steps", "uses", "hits", "fills", "host"):
        assert captured[count] == status[count], "replays count what they did"
    assert captured["fills"] > captured["decode_steps"], "the cache changed while it was replayed"


def test_captured_and_dropped(folder: Path) -> None:
    with serving(folder) as engine:
        graphs, device = engine.live._built.graphs, device_of(engine)
        serve(engine, MOST_SEQUENCES)
        assert graphs.sizes == list(range(1, MOST_SEQUENCES + 1))
        stale = graphs._captured[1].graph
        slots = hybrid_of(engine).slots.capacity
        engine.resize(replace(engine.live.budget, expert_slots=slots - 1))
        assert graphs.sizes == []
        with pytest.raises(DeviceError, match="has moved"):
            stale.replay()
        serve(engine, 1)  # a prompt, then decode
        assert graphs.sizes == [1]
        assert graphs._captured[1].graph is not stale
        assert graphs._refused == ""
        assert device.epoch > 0


def test_a_decode_step_right_after_a_resize_is_captured(folder: Path) -> None:
    """Nobody has described the slots to the kernels since: that may not look like computing."""
    with serving(folder) as engine:
        how = Sampling(temperature=0, ignore_eos=True, max_tokens=12)
        engine.submit(Request((7,), how))  # a prompt of one token is a decode step
        events = engine.step()
        graphs = engine.live._built.graphs
        assert graphs.sizes == [1]
        engine.resize(replace(engine.live.budget, expert_slots=2))
        assert graphs.sizes == []
        events += engine.step()
        assert graphs.sizes == [1]
        while not engine.idle:
            events += engine.step()
        found = [event.token for event in events]
    with serving(folder, capture=False) as engine:
        assert engine.generate((7,), how) == found


def test_a_replay_takes_no_memory_of_the_device_and_torch_does_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder) as engine:
        serve(engine, 2)
        graphs, device = engine.live._built.graphs, device_of(engine)
        captured = graphs._captured[1]
        used, taken = device.memory.used, []
        monkeypatch.setattr(device.memory, "take", taken.append)

        def never(*_: object, **__: object) -> Logits:
            raise AssertionError("a plain pass")

        monkeypatch.setattr(graphs, "plain", never)
        monkeypatch.setattr(graphs._transformer, "forward", never)
        replays, replay = [], captured.graph.replay

        def counted() -> None:
            replays.append(1)
            replay()

        captured.graph.replay = counted  # type: ignore[method-assign]
        hybrid, before = hybrid_of(engine), hybrid_of(engine).status()
        for position in range(3):  # as the runner would: other tokens in the same buffers
            batch = captured.batch
            batch.tokens_T.fill_(9 + position)
            hybrid.begin(1, prefill=False)
            logits = graphs.forward(batch, engine.live._built.tiers.pools.state)
            hybrid.finish()
            assert bool(torch.isfinite(torch.from_numpy(logits.rows)).all())
        assert len(replays) == 3
        assert taken == []
        assert device.memory.used == used
        assert hybrid.status()["decode_steps"] == before["decode_steps"] + 3


def test_a_layer_that_reads_its_routing_is_told(folder: Path) -> None:
    """The strict recorder is on while a decode step is captured."""
    with serving(folder) as engine:
        hybrid = hybrid_of(engine)
        split = hybrid._split
        hybrid._split = lambda layer, x, routing, *a, **k: (  # type: ignore[method-assign]
            routing.ids_TX.tolist(),
            split(layer, x, routing, *a, **k),
        )[1]
        engine.submit(Request((7,), Sampling(temperature=0, ignore_eos=True, max_tokens=3)))
        (event,) = engine.step()
        assert isinstance(event.error, DeviceError)
        assert "the host read a value (tolist) while a step was captured" in str(event.error)
        assert not device_of(engine).capturing
        hybrid._split = split  # type: ignore[method-assign]
        serve(engine, 1)
        assert engine.live._built.graphs.sizes == [1]


def test_a_step_that_fails_when_it_is_replayed_leaves_no_wrong_row(folder: Path) -> None:
    with serving(folder) as engine:
        expected = serve(engine, 2)
        graphs, hybrid = engine.live._built.graphs, hybrid_of(engine)
        graph = graphs._captured[2].graph
        plan, replay = hybrid._ops.plan, graph.replay

        def fails() -> None:
            """As far as the first plan: it admits rows, and then there is no copy."""
            layer = hybrid._bank.moe_layers[0]
            ids = torch.arange(2, dtype=torch.int32).view(1, -1)
            at, quota = hybrid.slots.layer(layer), hybrid._tuner.quota(layer)
            out = hybrid.slots.planned(1, 2, 9, torch.zeros(4, dtype=torch.int32))
            plan(ids, at, hybrid.slots.cache, quota, out)
            raise DeviceError("a device that was lost")

        graph.replay = fails  # type: ignore[method-assign]
        for i in range(2):
            engine.submit(Request(tuple(range(3 + i, 14)), Sampling(max_tokens=6, ignore_eos=True)))
        errors = []
        while not engine.idle:
            errors += [event for event in engine.step() if event.error is not None]
        assert len(errors) == 2
        graph.replay = replay  # type: ignore[method-assign]
        found = serve(engine, 2)
        assert [(e.token, e.logprob) for e in found] == [(e.token, e.logprob) for e in expected]


def test_a_device_with_less_than_was_planned_holds_fewer_experts(folder: Path) -> None:
    """Somebody took memory between planning and building: all but the cache finds its room."""
    config = headrace.EngineConfig.of(
        threads=1,
        device="emulated",
        **{"emulated.memory": "64MiB", "experts.placement": "hybrid", "experts.cache": "100%"},
    )

    def start(total: int | None = None) -> tuple[Engine, EmulatedDevice]:
        opening = open_engine(folder, config)
        device = start_device(opening)
        assert isinstance(device, EmulatedDevice)
        device.memory.total = total or device.memory.total
        return Engine.start(opening, device=device), device

    engine, device = start()
    need, planned = device.memory.used, hybrid_of(engine).slots
    engine.close()
    engine, device = start(need - 3 * planned.slot_bytes)
    try:
        slots = hybrid_of(engine).slots
        assert planned.capacity * 2 // 3 <= slots.capacity < planned.capacity
        assert engine.live.budget.expert_slots == slots.capacity
        assert device.memory.used <= device.memory.total
        found = engine.generate((7, 8, 9), Sampling(temperature=0, max_tokens=8, ignore_eos=True))
        assert len(found) == 8
    finally:
        engine.close()
    threads = len(list(Path("/proc/self/task").iterdir()))
    with pytest.raises(CapacityError):
        start(need - planned.capacity * planned.slot_bytes)
    assert len(list(Path("/proc/self/task").iterdir())) == threads, "a failed start leaves threads"
