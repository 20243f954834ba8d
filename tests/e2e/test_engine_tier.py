"""Experts on disk with RAM as their cache give the bits of all in memory, whatever RAM holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from engines import answers, built, in_memory, load

from headrace.api.live_metrics import live_figures
from headrace.engine.engine import Engine
from headrace.engine.request import Request, Sampling
from headrace.errors import CapacityError, CheckpointError
from headrace.experts.disk import FromDisk
from headrace.experts.placement import Hybrid
from headrace.experts.reading import Coming, RowReader

PROMPTS = [tuple(3 + (i * 37 + j * j * 11) % 120 for j in range(3 + 7 * i)) for i in range(4)]
REQUESTS = [Request(p, Sampling(temperature=0, max_tokens=12, ignore_eos=True)) for p in PROMPTS]
RAM = [("2 slots", "on"), ("3 slots", "off"), ("25%", "auto"), ("60%", "on"), ("100%", "off")]


@pytest.fixture(scope="module", params=list(tiny.CASES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(request.param, tmp_path_factory)


def placement_of(engine: Engine) -> FromDisk:
    placement = engine.live._built.placement
    assert isinstance(placement, FromDisk)
    return placement


@pytest.fixture(scope="module")
def truth(folder: Path) -> Any:
    """(logits of the longest prompt, answers of all requests) of all in memory."""
    return in_memory(folder, REQUESTS)


@pytest.mark.parametrize(("ram", "ahead"), RAM)
def test_bits_are_those_of_all_in_memory(folder: Path, truth: Any, ram: str, ahead: str) -> None:
    engine = load(folder, **{"experts.ram": ram, "experts.read_ahead": ahead})
    placement = placement_of(engine)
    assert np.array_equal(engine.score(PROMPTS[-1]), truth[0])
    assert answers(engine, REQUESTS[:1]) == truth[1][:1]  # alone
    placement.tier.drop()
    placement.tier.check()
    assert answers(engine, REQUESTS) == truth[1]  # together, up to four in a step
    placement.tier.drop()
    placement.tier.check()
    assert placement.uses >= placement.misses > 0 or ram == "100%"
    engine.close()


def test_all_in_ram_is_read_once(folder: Path, truth: Any) -> None:
    engine = load(folder, **{"experts.ram": "100%", "experts.read_ahead": "off"})
    assert answers(engine, REQUESTS) == truth[1]
    placement = placement_of(engine)
    before = placement.status()["read_bytes"]
    assert answers(engine, REQUESTS) == truth[1]
    read = placement.status()["read_bytes"] - before
    whole = engine.live._built.opening.source.facts.experts_bytes
    assert read < whole / 2  # what the first requests did not use
    status = engine.status()
    names = {metric.name for metric in live_figures(status["live"])}
    assert {"headrace_tier_uses", "headrace_tier_misses", "headrace_tier_read_bytes"} <= names
    engine.close()


def test_a_file_cut_short_fails_the_request_and_not_the_engine(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = built("qwen3_moe", tmp_path_factory)
    (file,) = folder.glob("*.safetensors")
    whole = file.read_bytes()
    engine = load(folder, **{"experts.ram": "3 slots"})
    truth = answers(engine, REQUESTS)
    with file.open("r+b") as cut:
        cut.truncate(4096)
    engine.submit(REQUESTS[1])
    errors = []
    while not engine.idle:
        errors += [event.error for event in engine.step()]
    assert [type(error) for error in errors] == [CheckpointError]
    assert "cannot be read" in str(errors[0])
    assert "file ended early" in str(errors[0])
    assert "file ended early" in caplog.text
    assert "Traceback" not in caplog.text
    file.write_bytes(whole)  # into the same file: it is open still
    assert answers(engine, REQUESTS) == truth
    placement_of(engine).tier.drop()
    placement_of(engine).tier.check()
    engine.close()


def test_an_interrupted_step_leaves_no_row_behind(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(built("mixtral", tmp_path_factory), **{"experts.ram": "3 slots"})
    truth = answers(engine, REQUESTS)
    finish = RowReader.finish
    calls = 0

    def interrupted(self: RowReader, coming: Coming) -> None:
        nonlocal calls
        calls += 1
        finish(self, coming)
        if calls == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(RowReader, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS[1], REQUESTS[1].sampling)
    while not engine.idle:
        engine.step()
    assert answers(engine, REQUESTS) == truth
    placement_of(engine).tier.drop()
    placement_of(engine).tier.check()
    engine.close()


def test_too_little_ram_is_refused_with_its_limits(folder: Path) -> None:
    with pytest.raises(CapacityError, match=r"2 experts at least .* and at most"):
        load(folder, **{"experts.ram": "1 slots"})


@pytest.mark.parametrize(
    ("ram", "cache", "fill"),
    [
        ("2 slots", "30%", "balanced"),
        ("5 slots", "20%", "all"),
        ("40%", "2 slots", "none"),
        ("60%", "100%", "auto"),
    ],
)
def test_a_device_over_ram_over_disk(
    folder: Path, truth: Any, ram: str, cache: str, fill: str
) -> None:
    keys = {"experts.ram": ram, "experts.cache": cache, "experts.fill": fill}
    keys |= {"device": "emulated", "emulated.memory": "64MiB", "experts.placement": "hybrid"}
    engine = load(folder, **keys)
    hybrid = engine.live._built.placement
    assert isinstance(hybrid, Hybrid)
    assert hybrid.shelf is not None
    assert np.array_equal(engine.score(PROMPTS[-1]), truth[0])
    assert answers(engine, REQUESTS[:1]) == truth[1][:1]
    assert answers(engine, REQUESTS) == truth[1]
    hybrid.shelf.tier.drop()
    hybrid.shelf.tier.check()
    hybrid.slots.check()
    told = engine.status()["live"]
    counts = told["experts"]
    assert counts["uses"] == counts["hits"] + counts["fills"] + counts["host"] > 0
    assert told["tier"]["read_bytes"] > 0
    if fill == "none":
        assert counts["fills"] == 0
    if fill == "all":
        assert counts["fills"] > 0
    engine.close()
