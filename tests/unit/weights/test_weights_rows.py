"""Where rows lie on disk: every byte of an expert, in the order that kernels read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from headrace.bench.checkpoint import Shape, ensure
from headrace.bench.tier import run
from headrace.device.cpu import CpuDevice
from headrace.experts.reading import RowReader
from headrace.models.load import load_model
from headrace.models.source import ModelSource, open_model
from headrace.ops.choose import ops_for
from headrace.planning.facts import ExpertKey
from headrace.weights.probe import WAYS, Way, probe
from headrace.weights.rows import PAGE, without_rows

WAY = Way(*WAYS[0], 0.0)
ALIGNED = Shape(64, 32, 6, 2, 2, heads=4, kv_heads=2, head_dim=16, vocab=64, dtype="float32")


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every matrix of an expert fills whole pages."""
    return ensure(tmp_path_factory.mktemp("aligned"), ALIGNED, lambda *_: None)


def check_rows(source: ModelSource) -> RowReader:
    """Each row as read is the row as loaded."""
    with CpuDevice(1, exact=True) as device:
        ops = ops_for(device)
        whole = load_model(source, ops).expert_rows
        frames = load_model(source, ops, rows=False).expert_rows
        reader = RowReader(source.rows(), frames, 2, stages=2, way=WAY)
        reader.memory.fill_(0xFF)  # NaN in every format
        for layer, rows in enumerate(whole):
            for expert in range(rows.count if rows else 0):
                assert rows is not None
                reader.finish(reader.start(ExpertKey(layer, expert), 1, urgent=True))
                got = reader.rows(layer)
                for kind in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias"):
                    want = object.__getattribute__(rows, kind)
                    have = object.__getattribute__(got, kind)
                    assert bool(want) == bool(have)
                    if want:
                        assert torch.equal(want[expert], have[1])
        reader.close()
    return reader


@pytest.mark.parametrize("family", list(tiny.CASES))
def test_rows_are_those_of_the_loaded_model(family: str, tmp_path: Path) -> None:
    tiny.build(family, tmp_path)
    check_rows(open_model(tmp_path))


def test_rows_that_fill_pages_are_read_in_place(aligned: Path) -> None:
    source = open_model(aligned)
    reader = check_rows(source)
    for rows in reader.source.layers:
        assert rows is not None
        assert rows.stage_bytes == 0
        assert all(len(spans) == 1 for spans in rows.spans)  # gate, up and down in one read
        assert rows.read_bytes == 3 * 64 * 32 * 4
        assert rows.slot_bytes <= rows.read_bytes + 2 * PAGE


def test_what_is_left_beside_rows(aligned: Path) -> None:
    source = open_model(aligned)
    rest = without_rows(source.plan, source.facts.experts)
    assert rest.total_bytes == source.facts.total_bytes - source.facts.experts_bytes
    assert not any("experts" in name for name in rest.pieces)


def test_the_benchmark_of_rows_on_disk(aligned: Path) -> None:
    made = run(
        model=aligned,
        shape=ALIGNED,
        tokens=4,
        repeats=2,
        threads=1,
        home=aligned,
        progress=lambda *_: None,
        ram="6 slots",
        skew=0.5,
    )
    assert made["experts_bytes"] == 2 * 6 * 3 * 64 * 32 * 4
    assert 0 < made["miss_rate"]["median"] <= 1
    assert made["read_bytes_per_s"]["median"] > 0
    assert made["all_in_memory_tokens_per_s"]["min"] > 0


def test_few_bytes_are_not_probed(aligned: Path) -> None:
    assert probe(open_model(aligned).rows()) == WAY


def test_a_probe_finds_a_rate(aligned: Path) -> None:
    found = probe(open_model(aligned).rows(), nbytes=32 << 10)
    assert (found.threads, found.piece_bytes) in WAYS
    assert found.rate > 0


def test_rows_in_half_precision(tmp_path: Path) -> None:
    tiny.build("gpt_oss", tmp_path, dtype=torch.bfloat16)
    check_rows(open_model(tmp_path))
