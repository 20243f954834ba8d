"""Whole readers under thousands of damaged headers: a typed error or correct places, within bounds
of memory. Guided by coverage where atheris is installed (`pip install -e '.[fuzz]'`).
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_readers import TARGETS, mutated, survives

GROWN_KB = 200_000
GUIDED = Path(__file__).parents[2] / "fixtures" / "fuzz_guided.py"


@pytest.mark.parametrize("count", [200, pytest.param(5_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TARGETS)
def test_damage_is_refused_or_harmless(name: str, count: int, tmp_path: Path) -> None:
    target = TARGETS[name](tmp_path)
    target.read(target.seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sound = sum(
        survives(target, mutated(target, random.Random(f"{name} {i}"))) for i in range(count)
    )
    assert 0 < sound < count // 2  # damage that changes nothing is rare, but there is some
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < GROWN_KB, "kB: an allocation that only the damage asked for"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_damage_that_coverage_finds(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", exc_type=ImportError)
    told = ["-runs=1000", "-seed=1", "-timeout=20", "-rss_limit_mb=2048", "-verbosity=0"]
    done = subprocess.run(
        [sys.executable, str(GUIDED), name, str(tmp_path), *told],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
