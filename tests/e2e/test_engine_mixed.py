"""Layers whose experts, or whose matrices, are stored in several formats: the logits of the values
that they stand for, and the same bits wherever the rows lie and however they came there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ftw_folders
import numpy as np
import pytest
import quantised
import tiny
import torch
from engines import answers, load

from headrace.engine.request import Request, Sampling
from headrace.errors import CheckpointError
from headrace.experts.arriving import Arriving
from headrace.experts.placement import Prefill
from headrace.models.source import open_model
from headrace.weights.verify import verify_ftw

PROMPTS = [tuple(3 + (i * 37 + j * j * 11) % 120 for j in range(3 + 13 * i)) for i in range(3)]
REQUESTS = [Request(p, Sampling(temperature=0, max_tokens=9, ignore_eos=True)) for p in PROMPTS]
SIZES = {"hidden_size": 64, "moe_intermediate_size": 64, "head_dim": 32, "num_hidden_layers": 2}
SPLIT = {"experts.placement": "hybrid", "experts.fill": "balanced", "experts.cache": "40%"}
DEVICE = {"device": "emulated", "emulated.memory": "64MiB"}
WAYS: dict[str, dict[str, Any]] = {
    "hybrid": {**DEVICE, **SPLIT},
    "filled": {**DEVICE, **SPLIT, "experts.fill": "all"},
    "on the device": {**DEVICE, "experts.placement": "resident"},
    "on the host": {**DEVICE, "experts.placement": "host"},
    "on disk": {"experts.ram": "3 slots"},
    "a device over disk": {**DEVICE, **SPLIT, "experts.ram": "4 slots"},
    "arriving": {"experts.arrive": "beside"},
}


def some_experts(name: str) -> str:
    """As where experts that calibration never reached, or that matter most, are left alone."""
    if ".experts." not in name:
        return "fp8-channel"
    kinds = ["nvfp4-ct", "", "fp8-channel", "int4"]
    return (
        kinds[int(name.split(".experts.")[1].split(".")[0]) % 4] if "layers.0" in name else "int4"
    )


def some_matrices(name: str) -> str:
    """As where down is kept, or has more bits, and layers have other mixtures."""
    if ".experts." not in name:
        return ""
    kinds = {"gate": "int4", "up": "int4", "down": ""}
    if "layers.1" in name:
        kinds = {"gate": "", "up": "nvfp4-ct", "down": "mxfp8"}
    return kinds[name.rsplit(".", 2)[1].removesuffix("_proj")]


def both(name: str) -> str:
    odd = ".experts." in name and int(name.split(".experts.")[1].split(".")[0]) % 2
    return some_experts(name) if odd else some_matrices(name)


@pytest.fixture(scope="module", params=[some_experts, some_matrices, both])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    choose: Callable[[str], str] = request.param
    path = tmp_path_factory.mktemp(choose.__name__)
    model = tiny_model(path)
    quantised.quantise(path, "", model, choose)
    with torch.no_grad():
        np.save(path / "truth.npy", model(torch.tensor([PROMPTS[-1]])).logits[0].numpy())
    return path


def tiny_model(path: Path) -> torch.nn.Module:
    case = tiny.CASES["qwen3_moe"]
    torch.manual_seed(5)
    with pytest.MonkeyPatch.context() as patch:
        values = {**case.values, **SIZES, "num_attention_heads": 4}
        patch.setitem(tiny.CASES, "small", tiny.Case(case.model_type, values))
        return tiny.build("small", path)


@pytest.fixture(scope="module")
def known(folder: Path) -> Any:
    """Logits and answers of all in memory, on the CPU."""
    return outcome(folder, {})


def outcome(path: Path, keys: dict[str, Any]) -> tuple[np.ndarray, list[list[int]]]:
    engine = load(path, **keys)
    try:
        return engine.score(PROMPTS[-1]), answers(engine, REQUESTS)
    finally:
        engine.close()


def check_same(path: Path, keys: dict[str, Any], known: Any) -> None:
    logits, told = outcome(path, keys)
    assert np.array_equal(logits, known[0])
    assert told == known[1]


def test_logits_are_those_of_the_values(folder: Path, known: Any) -> None:
    truth = np.load(folder / "truth.npy")
    assert np.square(known[0] - truth).sum() / np.square(truth).sum() < 1e-10


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bits_in_every_placement(folder: Path, known: Any, way: str) -> None:
    check_same(folder, WAYS[way], known)


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ftw_folders.converted(folder, tmp_path_factory.mktemp("made") / "ftw")


def test_the_same_bits_as_a_folder_of_our_own(folder: Path, known: Any, made: Path) -> None:
    assert verify_ftw(made) == []
    assert open_model(made).facts == open_model(folder).facts
    for way in ("hybrid", "on disk", "a device over disk"):
        check_same(made, WAYS[way], known)
    check_same(made, {}, known)


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a form that is none": (lambda e: e["rows"][2].__setitem__(3, 200), "expert 2: form 200"),
    "a negative form": (lambda e: e["rows"][2].__setitem__(3, -1), "form = -1"),
    "no form said": (lambda e: e["rows"][2].pop(), "checksum, form"),
    "no forms": (lambda e: e.update(forms=[]), "0 forms"),
    "very many forms": (lambda e: e.update(forms=e["forms"] * 200), "forms; expected 1 to 255"),
    "forms by name": (lambda e: e.update(forms={"0": e["forms"][0]}), "forms is a JSON dict"),
    "no row": (lambda e: e.update(forms=[*e["forms"], 7]), "a form is a JSON int"),
    "a form without parts": (lambda e: e["forms"][1].pop("parts"), "parts is a JSON None"),
    "a form of another size": (lambda e: e["forms"][1].update(row_bytes=4), "row_bytes 4"),
    "a form swapped": (lambda e: e["forms"].reverse(), ""),
}


@pytest.mark.parametrize("folder", [some_experts, both], indirect=True)
@pytest.mark.parametrize("case", BAD)
def test_an_index_whose_forms_are_wrong(made: Path, tmp_path: Path, case: str) -> None:
    change, words = BAD[case]

    def damage(table: dict[str, Any]) -> None:
        change(next(layer for layer in table["experts"].values() if "forms" in layer))

    path = ftw_folders.changed(made, tmp_path / "bad", damage)
    if words:
        with pytest.raises(CheckpointError, match=words):
            open_model(path)
        return
    faults: Sequence[object]
    try:  # rows of other sizes where they lie: they overlap, or their checksums say so
        open_model(path)
        faults = verify_ftw(path)
    except CheckpointError as error:
        faults = [error]
    assert faults


def test_a_prompt_streams_them(folder: Path, known: Any) -> None:
    """Whole layers through staging, behind slots in other forms."""
    engine = load(folder, **DEVICE, **SPLIT)
    placement = engine.live._built.placement
    assert placement.slots.staging == placement._stream.staging > 0
    placement._choose = lambda tokens: Prefill.STREAM
    assert np.array_equal(engine.score(PROMPTS[-1]), known[0])
    assert answers(engine, REQUESTS) == known[1]
    engine.close()


def test_what_arrives_has_room_of_its_own_or_does_not_arrive(folder: Path) -> None:
    source = open_model(folder)
    engine = load(folder, **WAYS["arriving"])
    built = engine.live._built
    uneven = source.rows().uneven_bytes
    assert isinstance(built.placement, Arriving) == (16 * uneven <= source.facts.experts_bytes)
    if isinstance(built.placement, Arriving):
        layers = [rows for rows in source.rows().layers if rows]
        room = sum(rows.slot_bytes * len(rows.form_of) for rows in layers)
        assert built.placement._reader.memory.numel() == room
    assert built.opening.rows != isinstance(built.placement, Arriving)
    engine.close()


def test_the_plan_holds_what_lies_in_memory(folder: Path) -> None:
    facts = open_model(folder).facts
    engine = load(folder, **WAYS["hybrid"])
    placement = engine.live._built.placement
    assert placement.slots.slot_bytes <= facts.slot_bytes
    bank = placement._bank
    held = sum(bank.layouts[layer].row_bytes * facts.experts[layer] for layer in bank.moe_layers)
    assert abs(held - facts.experts_bytes) <= 2 * sum(facts.experts)  # averages are rounded up
    engine.close()
