"""`headrace measure`: its profile is the one that later starts use, and what cannot be measured is
refused.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from fixtures.tiny import build
from headrace.cli.main import main
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.engine.opening import open_engine
from headrace.models.source import open_model
from headrace.planning.machine import Machine
from headrace.planning.profile import BandwidthProfile, layer_kinds, profile_path
from headrace.planning.resolve import profile_mark

LINK = {"emulated.link": "1GB/s", "emulated.memory": "64MiB"}
FLAGS = tuple(f"--set={key}={value}" for key, value in LINK.items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measure") / "mixtral"
    build("mixtral", path, dtype=torch.bfloat16)
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["measure", *(str(argument) for argument in arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_what_was_measured_is_used_and_told_when_an_engine_starts(
    folder: Path,
    home: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert run(folder, "--json", *FLAGS) == 0
    said = capfd.readouterr()
    assert "no device but the CPU" in said.err
    told = json.loads(said.out)
    facts = open_model(folder).facts
    (kind,) = layer_kinds(facts)
    row = told["rows"][kind]
    # The line goes through the mean of what was timed (1, 2, 4 and 8 rows), and copies may be late
    # on a busy machine but never early.
    mean_bytes = row["row_bytes"] * (1 + 2 + 4 + 8) / 4
    assert row["fill_s"] + mean_bytes / row["link"] >= 0.99 * mean_bytes / 1e9
    assert 0 < row["host_shared"] <= row["host"]
    assert [len(q) for q in row["q"].values()] == [8] * 3

    config = EngineConfig.of(device="emulated", **LINK)
    mark = profile_mark(config, Machine.probe(), facts)
    path = profile_path(home, facts)
    assert (told["path"], told["fingerprint"]) == (str(path), mark)
    assert BandwidthProfile.load(path, mark).rows[kind].link == row["link"]

    logging.getLogger("headrace").propagate = True  # commands have switched it off
    with caplog.at_level(logging.INFO, "headrace"):
        opening = open_engine(folder, config, home=home)
        engine = Engine.start(opening)
        engine.close()
    assert opening.plan.experts is not None
    assert opening.plan.experts.rows[kind].link == row["link"]
    assert f"measured: {path}" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "headrace"):
        other = config.with_keys({"emulated.link": "2GB/s"})
        Engine.start(open_engine(folder, other, home=home)).close()
    assert "a profile is ignored" in caplog.text
    assert "link 1e+09 B/s" in caplog.text


def test_people_get_a_table(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--device=emulated", *FLAGS) == 0
    said = capfd.readouterr()
    assert said.err == ""
    for words in ("link", "host", "beside the other", "q*", "fill = auto", "kept in"):
        assert words in said.out


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (("--device=cpu",), 2, "no link"),
        (("--set=emulated.clock=virtual", "--set=emulated.machine=rtx4060-laptop"), 2, "declared"),
        (("--device=cuda",), 2, "cuda"),
        (("--set=emulated.memory=1000",), 1, "expected"),
        (("--set=emulated.link=fast",), 2, "bytes per second"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    folder: Path,
    home: Path,
    capfd: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    assert run(folder, *flags) == code
    said = capfd.readouterr()
    assert told in said.err
    assert said.out == ""
    assert not (home / "profiles").exists()
