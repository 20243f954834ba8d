"""`headrace simulate` as a user runs it, and the chart it writes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.charts import LABEL_GAP, Line, line_chart
from headrace.cli.main import main
from headrace.planning.trace import RoutingTrace, TraceModel
from headrace.sim.synthetic import generate

SMALL = TraceModel("small", (32,) * 4, (4,) * 4, (1 << 20,) * 4)
SVG = "{http://www.w3.org/2000/svg}"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["simulate", *arguments])
    out = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, out.out, out.err


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.trace"
    generate(SMALL, sequences=2, prompt=4, decode=12).save(path)
    return path


def test_tables_and_chart(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "out" / "misses.svg"
    code, out, err = run(capsys, str(trace), "--chart", str(chart), "--machine", "rtx4060-laptop")
    assert (code, err) == (0, "")
    assert "24 decode steps, 24 decoded and 8 prompt tokens" in out
    for name in ("recency-frequency", "lru", "belady", "LRU to Belady", "investing", "paper"):
        assert name in out
    root = ET.fromstring(chart.read_text())
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert {"belady", "lru", "static-layers", "5", "50"} <= set(texts)
    assert len(list(root.iter(f"{SVG}polyline"))) == 7


def test_what_could_not_be_written_is_said_before_the_replay(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, str(trace), "--chart", str(tmp_path))
    assert (code, out) == (2, "")
    assert "--chart" in err
    assert "is a folder" in err
    code, out, err = run(capsys, str(trace), "--save", str(tmp_path / "again"))
    assert (code, out) == (2, "")
    assert "--save" in err
    assert "--synthetic" in err


def test_json_and_chosen_capacities(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, str(trace), "--json", "--capacity", "25", "--policy", "lru", "--machine", "all"
    )
    assert code == 0
    body = json.loads(out)
    assert [(row["policy"], row["slots"]) for row in body["policies"]] == [
        ("lru", 32),
        ("belady", 32),
    ]
    assert len(body["machines"]) == 6


def test_synthetic_can_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.trace"
    arguments = ["--synthetic", "gpt-oss-20b", "--steps", "3", "--policy", "lru"]
    code, first, _ = run(capsys, *arguments, "--save", str(kept))
    assert code == 0
    assert RoutingTrace.load(kept).decode_steps == 3
    assert run(capsys, str(kept), "--policy", "lru") == (0, first, "")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "neither a trace nor --synthetic"),
        (["--synthetic", "nothing"], 2, "no synthetic model 'nothing'"),
        (["missing.trace"], 1, "No such file"),
        (["--synthetic", "gpt-oss-20b", "--steps", "2", "--capacity", "0"], 2, "capacity"),
        (["--synthetic", "gpt-oss-20b", "--steps", "2", "--policy", "x"], 2, "no policy"),
        (["--synthetic", "gpt-oss-20b", "--steps", "2", "--machine", "x"], 2, "no machine"),
    ],
)
def test_bad_input(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (code, "")
    assert says in err
    assert "Traceback" not in err


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    lines = [Line(f"<{i}> & co", ((0.0, 1.0), (50.0, 0.001 * i))) for i in range(8)]
    svg = line_chart(lines, title="t", subtitle="s", x_label="x", y_label="y")
    root = ET.fromstring(svg)
    places = [
        float(node.attrib["y"])
        for node in root.iter(f"{SVG}text")
        if (node.text or "").endswith("co")
    ]
    assert len(places) == 8
    places.sort()
    assert min(b - a for a, b in pairwise(places)) >= LABEL_GAP - 0.11


def test_a_flat_line_at_zero_can_be_drawn() -> None:
    svg = line_chart(
        [Line("none", ((5.0, 0.0), (50.0, 0.0)))], title="t", subtitle="", x_label="", y_label=""
    )
    assert "nan" not in svg
