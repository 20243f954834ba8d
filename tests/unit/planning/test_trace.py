"""The trace file: what was written comes back, and nothing else is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CheckpointError, ConfigError
from headrace.planning.trace import MAGIC, NONE, RoutingTrace, TraceModel

MODEL = TraceModel("tiny", (4, 0, 6), (2, 0, 3), (100, 0, 120))


def small() -> RoutingTrace:
    """A prompt of two tokens, then two decode steps, the second of two sequences."""
    ids = np.array(
        [
            [[0, 1, NONE], [5, 0, 2]],
            [[3, 2, NONE], [1, 0, 2]],
            [[3, 0, NONE], [1, 4, 5]],
            [[1, 0, NONE], [1, 4, 3]],
            [[2, 0, NONE], [0, 1, 2]],
        ],
        np.uint16,
    )
    prefill = np.array([1, 1, 0, 0, 0], np.bool_)
    return RoutingTrace(MODEL, np.array([2, 1, 2], np.uint32), prefill, ids)


def same(a: RoutingTrace, b: RoutingTrace) -> bool:
    return (
        a.model == b.model
        and np.array_equal(a.lengths, b.lengths)
        and np.array_equal(a.prefill, b.prefill)
        and np.array_equal(a.ids, b.ids)
    )


@st.composite
def traces(draw: st.DrawFn) -> RoutingTrace:
    experts = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))
    top_k = [draw(st.integers(1, n)) if n else 0 for n in experts]
    model = TraceModel(draw(st.text(max_size=5)), tuple(experts), tuple(top_k), tuple(experts))
    lengths = draw(st.lists(st.integers(0, 3), max_size=5))
    tokens = sum(lengths)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    ids = np.full((tokens, len(model.moe_layers), model.widest), NONE, np.uint16)
    for i, layer in enumerate(model.moe_layers):
        for t in range(tokens):
            ids[t, i, : top_k[layer]] = rng.permutation(experts[layer])[: top_k[layer]]
    return RoutingTrace(model, np.array(lengths, np.uint32), rng.random(tokens) < 0.5, ids)


@given(trace=traces())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, trace: RoutingTrace) -> None:
    path = tmp_path_factory.mktemp("t") / "t.trace"
    trace.save(path)
    assert same(RoutingTrace.load(path), trace)
    assert [f.name for f in path.parent.iterdir()] == ["t.trace"]


def test_steps_and_counts() -> None:
    trace = small()
    assert [len(prefill) for _, prefill in trace.steps()] == [2, 1, 2]
    assert [ids[0, 0, 0] for ids, _ in trace.steps()] == [0, 3, 1]
    assert (trace.tokens, trace.decode_steps) == (5, 2)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    small().save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            RoutingTrace.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="cut or grown"):
        RoutingTrace.load(path)


def test_every_flipped_byte_of_the_body_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    small().save(path)
    whole = bytearray(path.read_bytes())
    start = len(MAGIC) + 4 + int.from_bytes(whole[len(MAGIC) : len(MAGIC) + 4], "little")
    for at in range(start, len(whole)):
        whole[at] ^= 0x40
        path.write_bytes(whole)
        with pytest.raises(CheckpointError, match="checksum"):
            RoutingTrace.load(path)
        whole[at] ^= 0x40


@given(noise=st.binary(max_size=200), keep=st.integers(0, 30))
def test_noise_is_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, keep: int
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.trace"
    small().save(path)
    path.write_bytes(path.read_bytes()[:keep] + noise)
    with pytest.raises(CheckpointError):
        RoutingTrace.load(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": -1}, "steps = -1"),
        ({"tokens": 1 << 50}, "tokens"),
        ({"tokens": True}, "tokens = True"),
        ({"experts": [70000, 0, 6]}, "bad list experts"),
        ({"experts": [4, 0]}, "different lengths"),
        ({"experts": [], "top_k": [], "row_bytes": []}, "different lengths"),
        ({"top_k": [5, 0, 3]}, "top-5 of 4"),
        ({"top_k": [0, 0, 3]}, "top-0 of 4"),
        ({"top_k": "abc"}, "bad list top_k"),
        ({"family": 3}, "no family"),
        ({"experts": [4, 0, 5]}, "layer 2 out of range"),
        ({"steps": 4}, "cut or grown"),
    ],
)
def test_bad_headers(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "t.trace"
    small().save(path)
    _rewrite(path, lambda header: header | change)
    with pytest.raises(CheckpointError, match=says):
        RoutingTrace.load(path)


def _rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    start = len(MAGIC) + 4
    text = json.dumps(change(json.loads(data[start : start + length]))).encode()
    path.write_bytes(MAGIC + len(text).to_bytes(4, "little") + text + data[start + length :])


def test_other_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    with pytest.raises(CheckpointError, match="No such file"):
        RoutingTrace.load(path)
    path.write_bytes(MAGIC[:-1] + b"\x02" + bytes(100))
    with pytest.raises(CheckpointError, match="another version"):
        RoutingTrace.load(path)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CheckpointError, match="no routing trace"):
        RoutingTrace.load(path)
    with pytest.raises(CheckpointError):
        RoutingTrace.load(tmp_path)


def test_a_trace_of_another_model_is_refused() -> None:
    small().expect(MODEL)
    small().expect(TraceModel("renamed", MODEL.experts, MODEL.top_k, (1, 0, 1)))
    with pytest.raises(ConfigError, match=r"the trace is of tiny.*expected other"):
        small().expect(TraceModel("other", (4, 0, 8), (2, 0, 3), (100, 0, 120)))
