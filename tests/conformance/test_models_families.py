"""Every family against `transformers`: logits, greedy tokens, and the same however a prompt is cut
or batched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.drive import Driver
from fixtures.tiny import CASES, VOCAB, build
from headrace import _native
from headrace.device.cpu import CpuDevice
from headrace.models.load import LoadedModel, load_model
from headrace.models.source import open_model
from headrace.ops.choose import ops_for
from headrace.ops.reference import reference_ops
from headrace.ops.table import Ops

PROMPT = torch.randint(0, VOCAB, (37,), generator=torch.Generator().manual_seed(3)).tolist()
OTHER = torch.randint(0, VOCAB, (29,), generator=torch.Generator().manual_seed(4)).tolist()
NEW = 64
CLOSE = 1e-4  # of the largest logit

# Importing transformers alone has taken 90 s on a machine busy with other work.
pytestmark = pytest.mark.timeout(600)


@dataclass
class Truth:
    """A checkpoint, the transformers model that wrote it, and its logits of the prompt."""

    path: Path
    model: Any
    logits: Tensor


def logits_of(model: Any, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


@pytest.fixture(scope="module", params=CASES)
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    path = tmp_path_factory.mktemp("tiny") / request.param
    model = build(request.param, path)
    return Truth(path, model, logits_of(model, PROMPT))


def table(name: str) -> tuple[Ops, CpuDevice | None]:
    if name == "reference":
        return reference_ops(), None
    device = CpuDevice(2, isa=name, exact=True)
    return ops_for(device), device


@pytest.fixture(params=["reference", *_native.isas()])
def ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    found, device = table(request.param)
    yield found
    if device is not None:
        device.close()


@pytest.fixture
def native() -> Iterator[Ops]:
    with CpuDevice(2, exact=True) as device:
        yield ops_for(device)


def load(truth: Truth, ops: Ops) -> LoadedModel:
    return load_model(open_model(truth.path), ops)


def difference(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


def greedy(driver: Driver, prompt: list[int], count: int) -> list[int]:
    (logits,) = driver.step((0, prompt), rows="last")
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < count:
        (logits,) = driver.step((0, tokens[-1:]))
        tokens.append(int(logits[-1].argmax()))
    return tokens


@pytest.mark.usefixtures("nan_empties")
def test_logits_equal_transformers(truth: Truth, ops: Ops) -> None:
    driver = Driver(load(truth, ops), ops)
    (logits,) = driver.step((0, PROMPT))
    assert difference(logits, truth.logits) < CLOSE


def test_greedy_tokens_equal_transformers(truth: Truth, native: Ops) -> None:
    """One pass of transformers over all of it: each token is its greedy choice after those
    before.
    """
    tokens = greedy(Driver(load(truth, native), native), PROMPT, NEW)
    logits = logits_of(truth.model, PROMPT + tokens)[len(PROMPT) - 1 : -1]
    best = logits.topk(2).values
    margin = float((best[:, 0] - best[:, 1]).min())
    assert margin > 1e-3, "a choice this narrow proves nothing: change the seed of the case"
    assert logits.argmax(-1).tolist() == tokens
    assert len(set(tokens)) > 9


def chunked(driver: Driver, tokens: list[int], sizes: list[int]) -> Tensor:
    parts, at = [], 0
    for size in sizes:
        parts += driver.step((0, tokens[at : at + size]))
        at += size
    assert at == len(tokens)
    return torch.cat(parts)


@pytest.mark.usefixtures("nan_empties")
def test_any_cut_and_any_company_give_the_same_bits(truth: Truth, native: Ops) -> None:
    model = load(truth, native)
    whole = chunked(Driver(model, native), PROMPT, [37])
    assert torch.equal(whole, chunked(Driver(model, native), PROMPT, [1, 3, 7, 2, 24]))
    assert torch.equal(whole, chunked(Driver(model, native), PROMPT, [1] * 37))
    alone = chunked(Driver(model, native), OTHER, [29])
    driver = Driver(model, native)
    mine, others = [], []
    at = other_at = 0
    for count, other_count in ((0, 5), (4, 1), (1, 17), (17, 1), (15, 5)):
        pairs = [(2, OTHER[other_at : other_at + other_count]), (0, PROMPT[at : at + count])]
        results = driver.step(*(pair for pair in pairs if pair[1]))
        others.append(results[0])
        mine += results[1:]
        at, other_at = at + count, other_at + other_count
    assert torch.equal(whole, torch.cat(mine))
    assert torch.equal(alone, torch.cat(others))


def test_reference_ops_agree_under_cuts(truth: Truth) -> None:
    ops = reference_ops()
    found = chunked(Driver(load(truth, ops), ops), PROMPT, [1, 3, 7, 2, 24])
    assert difference(found, truth.logits) < CLOSE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "qwen3_5_moe-wrapped", "deepseek_v3"])
@pytest.mark.usefixtures("nan_empties")
def test_half_width_weights_are_read_exactly(
    name: str, dtype: torch.dtype, native: Ops, tmp_path: Path
) -> None:
    model = build(name, tmp_path, dtype=dtype)
    expected = logits_of(model, PROMPT)
    loaded = load_model(open_model(tmp_path), native)
    (logits,) = Driver(loaded, native).step((0, PROMPT))
    assert loaded.facts.dtype == str(dtype).removeprefix("torch.")
    assert difference(logits, expected) < CLOSE


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_bfloat16_caches_are_close(name: str, native: Ops, tmp_path: Path) -> None:
    model = build(name, tmp_path)
    expected = logits_of(model, PROMPT)
    driver = Driver(load_model(open_model(tmp_path), native), native, kv_dtype=torch.bfloat16)
    found = chunked(driver, PROMPT, [30, 7])
    assert 1e-5 < difference(found, expected) < 0.1
    mean_square = float((found - expected).square().mean() / expected.square().mean())
    assert mean_square < 1e-3


def test_a_step_without_wanted_rows_yields_none(native: Ops, tmp_path: Path) -> None:
    build("mixtral", tmp_path)
    driver = Driver(load_model(open_model(tmp_path), native), native)
    assert [part.shape for part in driver.step((0, PROMPT), rows="none")] == [(0, VOCAB)]
    (after,) = driver.step((0, OTHER[:1]))
    whole = Driver(driver.model, native)
    assert torch.equal(after, whole.step((0, PROMPT + OTHER[:1]))[0][-1:])
