"""Bytes arrive where they should, once, and leave when the last view of them is gone."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from weights_files import save

from headrace import _native
from headrace.errors import CheckpointError
from headrace.weights.arena import Arena
from headrace.weights.loader import Reading
from headrace.weights.names import Layout, NameMap, rule
from headrace.weights.open import open_checkpoint
from headrace.weights.plan import WeightPlan, plan_weights
from headrace.weights.views import tensors_of


def plan_of(path: Path, tensors: dict[str, Tensor], *skipped: str, pad: int = 0) -> WeightPlan:
    path.joinpath("config.json").write_text("{}")
    save(path / "model.safetensors", tensors, pad=pad)
    wanted = {n: tuple(t.shape) for n, t in tensors.items() if not n.startswith(skipped or ("-",))}
    names = NameMap([rule(name, name) for name in wanted], skipped=skipped)
    return plan_weights(open_checkpoint(path), names, wanted)


def loaded(plan: WeightPlan) -> dict[str, Tensor]:
    reading = Reading(plan)
    reading.wait()
    return {name: tensor for name, (tensor,) in tensors_of(plan, reading).items()}


@given(
    sizes=st.lists(st.integers(0, 9000), min_size=1, max_size=12),
    skip=st.sets(st.integers(0, 11)),
    pad=st.integers(0, 40),
)
@settings(max_examples=40)
def test_every_byte_arrives(tmp_path: Path, sizes: list[int], skip: set[int], pad: int) -> None:
    """Any sizes, any tensors left out between them, data at any alignment."""
    tensors = {
        f"{'skip' if i in skip else 't'}{i}": torch.randn(
            n, generator=torch.Generator().manual_seed(i)
        )
        for i, n in enumerate(sizes)
    }
    plan = plan_of(tmp_path, tensors, "skip", pad=pad)
    found = loaded(plan)
    assert set(found) == {name for name in tensors if name.startswith("t")}
    for name, tensor in found.items():
        assert torch.equal(tensor, tensors[name])
        assert tensor.data_ptr() % 4 == 0


def test_tensors_lie_where_they_were_read(tmp_path: Path) -> None:
    """No copy: the same distance in memory as in the file, at the same place within a page."""
    tensors = {"a": torch.randn(1000), "b": torch.randn(3000)}
    plan = plan_of(tmp_path, tensors)
    found = loaded(plan)
    a, b = (t.offset for t in plan.stored)
    assert found["b"].data_ptr() - found["a"].data_ptr() == b - a
    assert found["a"].data_ptr() % 4096 == a % 4096


def test_a_view_keeps_its_memory_and_the_last_one_frees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(
        _native, "free", lambda a, n, free=_native.free: (freed.append(a), free(a, n))
    )
    found = loaded(plan_of(tmp_path, {"a": torch.arange(2000.0), "b": torch.ones(5)}))
    row = found.pop("a")[1000:1010]
    found.clear()
    gc.collect()
    assert not freed
    assert row.tolist() == list(range(1000, 1010))
    del row
    gc.collect()
    assert len(freed) == 1


def test_a_transposed_tensor_is_copied_and_its_source_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("config.json").write_text("{}")
    stored = torch.randn(11, 200, 1034)
    save(tmp_path / "model.safetensors", {"w": stored, "v": torch.ones(7)})
    names = NameMap(
        [rule("w", "gate", "up", layouts=(Layout.TRANSPOSE, Layout.EVEN_ODD)), rule("v", "v")]
    )
    needs = {"gate": (11, 517, 200), "up": (11, 517, 200), "v": (7,)}
    plan = plan_weights(open_checkpoint(tmp_path), names, needs)
    assert plan.copied == {"w"}
    arenas: list[weakref.ref[Arena]] = []
    made = Arena.__init__

    def watched(self: Arena, nbytes: int) -> None:
        made(self, nbytes)
        arenas.append(weakref.ref(self))

    monkeypatch.setattr(Arena, "__init__", watched)
    reading = Reading(plan)
    reading.wait()
    tensors = tensors_of(plan, reading)
    gc.collect()
    whole = stored.transpose(1, 2)
    for name, rows in (("gate", whole[:, 0::2]), ("up", whole[:, 1::2])):
        (tensor,) = tensors[name]
        assert torch.equal(tensor, rows)
        assert tensor.is_contiguous()
    assert len(arenas) == 4  # "w", "v", and the two copies
    assert sum(arena() is None for arena in arenas) == 1


def test_progress_is_monotone_and_ends_at_the_total(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": torch.randn(500_000), "b": torch.randn(3)})
    calls: list[tuple[int, int]] = []
    Reading(plan).wait(lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[-1] == (plan.total_bytes, plan.total_bytes)


def test_a_file_that_shrinks_after_the_check_is_an_error(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": torch.randn(5000)})
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:9000])
    reading = Reading(plan)
    with pytest.raises(CheckpointError, match=r"reading weights failed.*download the file again"):
        reading.wait()


def test_a_file_that_vanishes_after_the_check_is_an_error(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": torch.randn(50)})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="reading weights failed"):
        Reading(plan).wait()


def test_cancelling_ends_the_wait(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": torch.randn(2_000_000)})
    reading = Reading(plan)
    reading.cancel()
    reading.cancel()
    with pytest.raises(CheckpointError, match="cancelled"):
        reading.wait()


def test_two_files_of_two_dtypes(tmp_path: Path) -> None:
    tmp_path.joinpath("config.json").write_text("{}")
    a, b = torch.randn(300, 7), torch.randn(11, 5).bfloat16()
    save(tmp_path / "1.safetensors", {"a": a}, pad=1)
    save(tmp_path / "2.safetensors", {"b": b}, pad=3)
    names = NameMap([rule("a", "a"), rule("b", "b")])
    plan = plan_weights(open_checkpoint(tmp_path), names, {"a": (300, 7), "b": (11, 5)})
    found = loaded(plan)
    assert torch.equal(found["a"], a)
    assert torch.equal(found["b"], b)
    assert found["b"].dtype == torch.bfloat16
