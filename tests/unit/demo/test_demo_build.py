"""The built folder: right values, whole or absent, built once, rebuilt when its inputs change."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file
from tiny_parent import EXPERTS, LAYERS, RANK, TinyParent, tiny_deltas, tiny_parent

from headrace.demo import builder, shards
from headrace.demo.builder import Recipe, build, ensure, is_whole
from headrace.errors import CapacityError, CheckpointError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyParent:
    return tiny_parent(tmp_path_factory.mktemp("parent") / "tiny.gguf")


@pytest.fixture
def recipe(tiny: TinyParent, tmp_path: Path) -> Recipe:
    tiny_deltas(tmp_path / "deltas.safetensors")
    return Recipe(tiny.path, tmp_path / "deltas.safetensors")


def quiet(done: int, total: int) -> None:
    """A progress that shows nothing."""


def test_experts_are_the_parent_plus_their_own_delta(tiny: TinyParent, tmp_path: Path) -> None:
    deltas = tiny_deltas(tmp_path / "d.safetensors", seed=3)
    folder = build(tmp_path, quiet, recipe=Recipe(tiny.path, tmp_path / "d.safetensors"))
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    dense = dict(tiny.model.named_parameters())
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}.block_sparse_moe"
        router = torch.from_numpy(deltas["router"][layer]).bfloat16()
        assert torch.equal(found.pop(f"{prefix}.gate.weight"), router)
        for expert in range(EXPERTS):
            rows = slice(expert * RANK, (expert + 1) * RANK)
            for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                into = torch.from_numpy(deltas[f"in_{part}"][layer, rows]).double()
                out = torch.from_numpy(deltas[f"out_{part}"][layer, rows]).double()
                parent = dense[f"model.layers.{layer}.mlp.{part}_proj.weight"].detach().double()
                weight = found.pop(f"{prefix}.experts.{expert}.{name}.weight")
                assert weight.dtype == torch.bfloat16
                torch.testing.assert_close(
                    weight.double(), parent + out.T @ into, rtol=2**-8, atol=1e-6
                )
    rest = {name: weight for name, weight in dense.items() if ".mlp." not in name}
    assert set(found) == set(rest)
    for name, weight in rest.items():
        assert torch.equal(found[name].float(), weight.detach()), name


def test_transformers_loads_it_and_equal_experts_are_the_dense_model(
    tiny: TinyParent, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tiny_deltas(tmp_path / "zero.safetensors", scale=0.0)
    folder = build(tmp_path, quiet, recipe=Recipe(tiny.path, tmp_path / "zero.safetensors"))
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == "MixtralForCausalLM"
    ids = torch.randint(0, 300, (2, 40), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, tiny.model(ids).logits, rtol=1e-4, atol=1e-5)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [0, 2]
    assert len(AutoTokenizer.from_pretrained(folder)) == tiny.tokenizer.get_vocab_size()


def test_progress_counts_every_byte_once(recipe: Recipe, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = build(tmp_path, lambda done, total: seen.append((done, total)), recipe=recipe)
    total = sum(t.nbytes for t in recipe.tensors())
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert [d for d, _ in seen] == sorted({d for d, _ in seen})
    written = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    assert total < written < total + 64_000


@pytest.mark.parametrize("step", [0, 1, 20, 50])
def test_an_interrupt_leaves_nothing(recipe: Recipe, tmp_path: Path, step: int) -> None:
    calls = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, interrupt, recipe=recipe)
    assert [p.name for p in (tmp_path / "models").iterdir()] == [".demo.lock"]
    assert is_whole(build(tmp_path, quiet, recipe=recipe), recipe.version)


def test_an_interrupted_rebuild_keeps_the_old_model(
    tiny: TinyParent, recipe: Recipe, tmp_path: Path
) -> None:
    folder = build(tmp_path, quiet, recipe=recipe)
    tiny_deltas(tmp_path / "new.safetensors", seed=9)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path, interrupt, recipe=Recipe(tiny.path, tmp_path / "new.safetensors"))
    assert is_whole(folder, recipe.version)


def test_a_failing_write_is_a_capacity_error_and_leaves_nothing(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, shard: object, progress: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards, "_write_shard", full)
    with pytest.raises(CapacityError, match="No space left on device"):
        build(tmp_path, quiet, recipe=recipe)
    assert [p.name for p in (tmp_path / "models").iterdir()] == [".demo.lock"]


def test_a_home_that_cannot_be_written_is_a_capacity_error(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CapacityError, match="set HEADRACE_HOME to another folder"):
        ensure(tmp_path / "file", quiet, recipe=recipe)


def test_a_small_disk_is_refused_before_anything_is_written(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CapacityError, match=r"0\.00 GB free; expected 0\.07 GB"):
        build(tmp_path, quiet, recipe=recipe)


def test_built_once_and_again_when_the_deltas_change(
    tiny: TinyParent, recipe: Recipe, tmp_path: Path
) -> None:
    builds = 0

    def count(done: int, total: int) -> None:
        nonlocal builds
        builds += done == 0

    folder = ensure(tmp_path, count, recipe=recipe)
    first = {p.name: p.read_bytes() for p in folder.iterdir()}
    ensure(tmp_path, count, recipe=recipe)
    assert builds == 1
    tiny_deltas(tmp_path / "new.safetensors", seed=9)
    newer = Recipe(tiny.path, tmp_path / "new.safetensors")
    assert newer.version != recipe.version
    assert ensure(tmp_path, count, recipe=newer) == folder
    assert builds == 2
    second = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert set(first) == set(second)
    assert {n for n in first if first[n] != second[n]} == {
        "model-00001-of-00001.safetensors",
        "headrace-demo.json",
    }


@pytest.mark.parametrize("harm", ["cut", "gone", "stamp"])
def test_a_torn_folder_is_built_again(recipe: Recipe, tmp_path: Path, harm: str) -> None:
    folder = ensure(tmp_path, quiet, recipe=recipe)
    shard = folder / "model-00001-of-00001.safetensors"
    whole = shard.read_bytes()
    if harm == "cut":
        shard.write_bytes(whole[:-1])
    elif harm == "gone":
        shard.unlink()
    else:
        (folder / "headrace-demo.json").write_text("[]")
    assert not is_whole(folder, None)
    ensure(tmp_path, quiet, recipe=recipe)
    assert shard.read_bytes() == whole


def test_a_second_builder_waits_and_builds_nothing(recipe: Recipe, tmp_path: Path) -> None:
    holding, go = threading.Event(), threading.Event()
    starts: list[str] = []
    done: list[Path] = []

    def watch(name: str, *, hold: bool) -> Callable[[int, int], None]:
        def progress(at: int, total: int) -> None:
            if at == 0:
                starts.append(name)
                if hold:
                    holding.set()
                    assert go.wait(30)

        return progress

    def run(name: str, *, hold: bool) -> threading.Thread:
        def work() -> None:
            done.append(build(tmp_path, watch(name, hold=hold), recipe=recipe))

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    first = run("first", hold=True)
    assert holding.wait(30)
    second = run("second", hold=False)
    second.join(0.3)
    assert second.is_alive()
    assert not (tmp_path / "models" / "demo").exists()
    go.set()
    first.join(30)
    second.join(30)
    assert starts == ["first"]
    assert len(done) == 2


def test_what_a_killed_builder_left_is_cleared(recipe: Recipe, tmp_path: Path) -> None:
    left = tmp_path / "models" / ".demo.4711.part"
    left.mkdir(parents=True)
    (left / "model-00001-of-00001.safetensors").write_bytes(b"half")
    build(tmp_path, quiet, recipe=recipe)
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == [".demo.lock", "demo"]


def test_a_finished_model_needs_its_package_no_more(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "is_installed", lambda: False)
    monkeypatch.setattr("headrace.demo.source._installed", lambda: None)
    with pytest.raises(CheckpointError, match="pip install"):
        ensure(tmp_path, quiet)
    folder = build(tmp_path, quiet, recipe=recipe)
    assert ensure(tmp_path, quiet) == folder


def test_deltas_of_another_model_are_refused(tiny: TinyParent, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tensors = tiny_deltas(tmp_path / "d.safetensors")
    tensors["router"] = tensors["router"][:, :, :32].copy()
    save_file(tensors, tmp_path / "d.safetensors")
    with pytest.raises(CheckpointError, match=r"\(2, 32, 96\); expected \(2, 64, 96\)"):
        build(tmp_path, quiet, recipe=Recipe(tiny.path, tmp_path / "d.safetensors"))
    (tmp_path / "d.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(CheckpointError, match="install headrace again"):
        build(tmp_path, quiet, recipe=Recipe(tiny.path, tmp_path / "d.safetensors"))


@given(
    arrays("float32", (5, 3), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
)
def test_bfloat16_rounds_as_torch_does(values: object) -> None:
    expected = torch.from_numpy(values).bfloat16().view(torch.uint16)
    assert torch.equal(torch.from_numpy(shards.bfloat16(values)), expected)


def test_shards_keep_order_and_limit() -> None:
    sizes = [30, 10, 25, 70, 5, 5]
    planned = [shards.Planned(str(i), (n,), lambda: None) for i, n in enumerate(sizes)]
    found = [[t.name for t in shard] for shard in shards.split(planned, limit=80)]
    assert found == [["0", "1"], ["2"], ["3"], ["4", "5"]]
