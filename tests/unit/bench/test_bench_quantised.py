"""Random quantised checkpoints open as what they are called; the roofline is arithmetic."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.bench import prefill
from headrace.bench.checkpoint import Shape
from headrace.bench.quantised import FILES, LAYOUTS, ensure_quantised
from headrace.bench.roofline import Roofline, step_bytes
from headrace.errors import ConfigError
from headrace.formats.format import BFLOAT16, BY_TAG
from headrace.models.source import open_model

SHAPE = Shape(256, 256, 4, 2, 2, 4, 2, 64, 500)


def quiet(done: int, total: int, what: str) -> None:
    assert 0 <= done <= total


@pytest.mark.parametrize("kind", [*LAYOUTS, *FILES])
def test_a_step_reads_mostly_the_format_that_was_asked_for(kind: str, tmp_path: Path) -> None:
    path = ensure_quantised(tmp_path, SHAPE, kind, quiet)
    assert ensure_quantised(tmp_path, SHAPE, kind, pytest.fail) == path
    source = open_model(path)
    read = step_bytes(source)
    prevailing = read.most_common(1)[0][0]
    assert prevailing.name == {"GPTQ": "int4-ordered"}.get(kind, kind.lower())
    # Half of the experts' codes and scales, all of attention's.
    assert abs(sum(read.values()) - source.facts.decode_bytes) < 0.04 * source.facts.decode_bytes


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Q9_X"):
        ensure_quantised(tmp_path, SHAPE, "Q9_X", quiet)


def test_each_format_is_bound_by_the_lower_rate() -> None:
    roofline = Roofline({BFLOAT16: 1000, BY_TAG["Q5_K"]: 600}, 256)
    roofline.rates = {"bfloat16": [900.0, 1000.0, 1100.0], "q5_k": [50.0]}
    assert roofline.seconds(200.0, 400) == 400 / 200 + 1000 / 200 + 600 / 50
    assert roofline.seconds(40.0) == 1600 / 40
    assert Roofline({BFLOAT16: 1000}, 256).seconds(10.0) == 100.0


def test_a_prompt_in_a_format_is_measured(tmp_path: Path) -> None:
    result = prefill.run(
        model=None, shape=SHAPE, kind="Q3_K", tokens=40, repeats=1, threads=1, home=tmp_path,
        progress=lambda done, total, what: None,
    )  # fmt: skip
    assert result["model"] == f"{SHAPE.name()}-q3_k.gguf"
    packed = ensure_quantised(tmp_path / "bench", SHAPE, "Q3_K", pytest.fail).stat().st_size
    assert 0.5 * packed < result["bytes"] < packed  # without the embedding
    assert 0 < result["tokens_per_s"]["median"] < 1e6


@pytest.mark.parametrize(
    ("kind", "hidden", "width"),
    [("GPTQ", 48, 48), ("INT4", 100, 128), ("Q4_K", 64, 256), ("Q8_0", 64, 40)],
)
def test_columns_that_a_format_has_no_blocks_for_are_refused_and_nothing_stays(
    tmp_path: Path, kind: str, hidden: int, width: int
) -> None:
    shape = dataclasses.replace(SHAPE, hidden=hidden, width=width)
    with pytest.raises(ConfigError, match="multiples of"):
        ensure_quantised(tmp_path, shape, kind, quiet)
    assert not list(tmp_path.iterdir())
