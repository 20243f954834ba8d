"""Checkpoints against needs: found, missing, misshapen, unexpected; one file, shards, torn
folders.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from weights_files import save

from headrace.errors import CheckpointError
from headrace.weights.names import Layout, NameMap, View, rule, views_of
from headrace.weights.open import open_checkpoint
from headrace.weights.plan import WeightPlan, plan_weights

NAMES = NameMap(
    (
        rule("embed.weight", "embed"),
        rule("head.weight", "head"),
        rule("layers.{layer}.w", "layers.{layer}.q"),
        rule("layers.{layer}.experts.{expert}.up", "layers.{layer}.experts.up"),
        rule("layers.{layer}.experts.both", "gate{layer}", "up{layer}", layouts=(Layout.HALVES,)),
    ),
    prefixes=("model.",),
    skipped=("mtp.",),
)
NEEDS = {"embed": (5, 4), "layers.0.q": (3, 4), "layers.0.experts.up": (2, 3, 4)}
TENSORS = {
    "model.embed.weight": torch.zeros(5, 4),
    "model.layers.0.w": torch.zeros(3, 4),
    "model.layers.0.experts.1.up": torch.zeros(3, 4),
    "model.layers.0.experts.0.up": torch.ones(3, 4),
}


def folder(path: Path, tensors: dict[str, Tensor]) -> Path:
    path.joinpath("config.json").write_text("{}")
    save(path / "model.safetensors", tensors)
    return path


def plan(path: Path, tensors: dict[str, Tensor], spare: frozenset[str] = frozenset()) -> WeightPlan:
    return plan_weights(open_checkpoint(folder(path, tensors)), NAMES, NEEDS, spare)


def test_finds_all_in_expert_order_and_skips_the_needless(tmp_path: Path) -> None:
    found = plan(tmp_path, {**TENSORS, "mtp.anything": torch.zeros(9, dtype=torch.int8)})
    assert [p.stored.name for p in found.pieces["layers.0.experts.up"]] == [
        "model.layers.0.experts.0.up",
        "model.layers.0.experts.1.up",
    ]
    assert found.total_bytes == 4 * (20 + 12 + 24)
    assert found.nbytes("layers.0.experts.up") == 4 * 24
    assert not found.copied


def test_a_spare_tensor_is_not_read(tmp_path: Path) -> None:
    found = plan(tmp_path, {**TENSORS, "head.weight": torch.zeros(5, 4)}, frozenset({"head"}))
    assert "head.weight" not in {t.name for t in found.stored}


BAD: dict[str, tuple[dict[str, Tensor | None], tuple[str, ...]]] = {
    "missing": ({"model.layers.0.w": None}, ("1 tensors are missing: layers.0.q", "download")),
    "missing expert": (
        {"model.layers.0.experts.1.up": None},
        ("missing: layers.0.experts.up[1]", "download"),
    ),
    "one expert too many": (
        {"model.layers.0.experts.2.up": torch.zeros(3, 4)},
        ("has an expert 2", "experts 0 to 1"),
    ),
    "unexpected": (
        {f"model.blob{i}": torch.zeros(1) for i in range(5)},
        ("5 tensors", "model.blob0, model.blob1, model.blob2 and 2 more", "config and weights"),
    ),
    "of another layer": ({"model.layers.7.w": torch.zeros(3, 4)}, ("model.layers.7.w",)),
    "shape": (
        {"model.layers.0.w": torch.zeros(4, 3)},
        ("'model.layers.0.w' has shape [4, 3]", "expected [3, 4]"),
    ),
    "dtype": (
        {"model.layers.0.w": torch.zeros(3, 4, dtype=torch.int8)},
        ("'model.layers.0.w' has dtype I8", "expected one of F32, BF16, F16"),
    ),
    "twice": ({"layers.0.w": torch.zeros(3, 4)}, ("same tensor",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_contents(case: str, tmp_path: Path) -> None:
    change, words = BAD[case]
    tensors = {n: t for n, t in {**TENSORS, **change}.items() if t is not None}
    with pytest.raises(CheckpointError) as caught:
        plan(tmp_path, tensors)
    for word in words:
        assert word in str(caught.value)


def shards(path: Path) -> dict[str, dict[str, str]]:
    folder(path, {})
    (path / "model.safetensors").unlink()
    names = list(TENSORS)
    save(path / "a.safetensors", {n: TENSORS[n] for n in names[:2]})
    save(path / "b.safetensors", {n: TENSORS[n] for n in names[2:]})
    index = {
        "weight_map": {n: "a.safetensors" if n in names[:2] else "b.safetensors" for n in names}
    }
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_shards(tmp_path: Path) -> None:
    shards(tmp_path)
    save(tmp_path / "stray.safetensors", {"stray": torch.zeros(1)})
    assert set(open_checkpoint(tmp_path).tensors) == set(TENSORS)
    (tmp_path / "stray.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").unlink()
    assert set(open_checkpoint(tmp_path).tensors) == set(TENSORS)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 weight files are missing.*b\.safetensors"):
        open_checkpoint(tmp_path)


def test_an_index_that_lies_is_caught(tmp_path: Path) -> None:
    index = shards(tmp_path)
    for place, words in (
        ("a.safetensors", "is missing though the index places it there"),
        ("../a.safetensors", "the name of a file beside it"),
    ):
        index["weight_map"]["model.layers.0.experts.1.up"] = place
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(CheckpointError, match=words):
            open_checkpoint(tmp_path)


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is another file"):
        open_checkpoint(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        open_checkpoint(tmp_path)
    for text in ("[]", "{", '{"a": NaN', "\x00"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)


def seen(view: View, stored: Tensor) -> Tensor:
    return stored.flatten().as_strided(view.shape, view.strides, view.start)


@pytest.mark.parametrize(
    ("shape", "layouts", "expected"),
    [
        ((2, 6, 5), (Layout.HALVES,), lambda t: (t[:, :3], t[:, 3:])),
        ((2, 6, 5), (Layout.EVEN_ODD,), lambda t: (t[:, 0::2], t[:, 1::2])),
        ((2, 5, 6), (Layout.TRANSPOSE,), lambda t: (t.transpose(1, 2),)),
        (
            (2, 5, 6),
            (Layout.TRANSPOSE, Layout.EVEN_ODD),
            lambda t: (t.transpose(1, 2)[:, 0::2], t.transpose(1, 2)[:, 1::2]),
        ),
        (
            (2, 5, 6),
            (Layout.TRANSPOSE, Layout.HALVES),
            lambda t: (t.transpose(1, 2)[:, :3], t.transpose(1, 2)[:, 3:]),
        ),
        ((2, 6), (Layout.EVEN_ODD_LAST,), lambda t: (t[:, 0::2], t[:, 1::2])),
        ((4, 1, 3), (Layout.DROP_MIDDLE,), lambda t: (t[:, 0],)),
        ((4, 3), (), lambda t: (t,)),
    ],
)
def test_layouts_are_views(shape, layouts, expected) -> None:  # type: ignore[no-untyped-def]
    stored = torch.randn(shape)
    views = views_of(shape, layouts)
    assert views is not None
    for view, truth in zip(views, expected(stored), strict=True):
        assert torch.equal(seen(view, stored), truth)
        assert view.rows_in_place == (truth.stride(-1) == 1)


def test_layouts_refuse_too_few_axes() -> None:
    assert views_of((4,), (Layout.TRANSPOSE,)) is None
    assert views_of((4, 3), (Layout.DROP_MIDDLE,)) is None
