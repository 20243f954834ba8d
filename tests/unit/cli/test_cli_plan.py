"""`headrace plan`: from headers alone, for this machine or another, and every refusal is plain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.tiny import build
from headrace.cli.main import main
from headrace.config import EngineConfig
from headrace.models.source import open_model
from headrace.planning.machine import Machine
from headrace.planning.machines import MACHINES
from headrace.planning.profile import BandwidthProfile, ProfileRow, layer_kinds, profile_path
from headrace.planning.resolve import profile_mark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "mixtral"
    build("mixtral", path, dtype=torch.bfloat16)
    return path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def planned(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(*arguments, "--json") == 0
    made: dict[str, Any] = json.loads(capfd.readouterr().out)
    return made


HYBRID = (
    "--device=emulated",
    "--set=experts.placement=hybrid",
    "--set=experts.fill=paper",
    "--set=experts.cache=25%",
    "--set=emulated.machine=rtx4060-laptop",
)


def test_it_reads_no_weights_and_imports_no_torch(folder: Path) -> None:
    script = (
        "import sys\nfrom headrace.cli.main import main\n"
        "try: main(['plan', *sys.argv[1:]])\nexcept SystemExit as e: assert e.code == 0\n"
        "heavy = {'torch', 'uvicorn', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for more in ((), HYBRID, ("--machine=rtx5090-desktop",)):
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder), *more],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "tokens/s" in done.stdout


def test_the_tables_are_for_people(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(str(folder), *HYBRID) == 0
    told = capfd.readouterr().out
    for line in (
        "placement",
        "asked for",
        "experts.cache = 25%",
        "1->1",
        "bandwidths of rtx4060-laptop",
        "expert cache",
        "keys and values",
        "first token",
    ):
        assert line in told


def test_a_plan_for_programs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = planned(capfd, str(folder), *HYBRID)
    slots = made["choices"]["slots"]["value"]
    assert slots == made["memory"]["expert_slots"]
    assert made["share"] == pytest.approx(0.25, abs=0.05)
    (table,) = made["quotas"].values()
    share = 11.8 / 47.5  # the paper's q* on that machine, at least one
    assert table == [0] + [max(1, round(m * share)) for m in range(1, len(table))]
    assert made["memory"]["used"] <= made["memory"]["free"]
    assert made["model"] == str(folder)
    assert all(c["reason"] for c in made["choices"].values())


def test_longer_contexts_are_slower(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = planned(capfd, str(folder), "--machine=rtx3090-server", "--context=8", "--context=64")
    short, long = made["predictions"]
    assert (short["context"], long["context"]) == (8, 64)
    assert short["tokens_per_s"] > long["tokens_per_s"] > 0
    assert 0 < short["first_token_s"] < long["first_token_s"]
    assert made["choices"]["context"]["value"] == 64
    assert made["choices"]["rates"]["value"] == "declared"


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_every_preset(folder: Path, machine: str, capfd: pytest.CaptureFixture[str]) -> None:
    made = planned(capfd, str(folder), "--machine", machine)
    assert made["machine"] == machine
    assert made["choices"]["placement"]["value"] == "resident"
    on_cpu = planned(capfd, str(folder), "--machine", machine, "--device=cpu")
    assert on_cpu["predictions"][0]["tokens_per_s"] < made["predictions"][0]["tokens_per_s"]


def test_a_machine_of_ones_own(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    box = tmp_path / "box.toml"
    rates = 'name = "box"\nlink_gbps = 10\nhost_gbps = 30\nram_gib = 2\n'
    box.write_text(rates + "memory_gib = 0.00024\n")
    short = ("--context=16", "--set=schedule.step_tokens=16")
    made = planned(capfd, str(folder), "--machine", str(box), *short)
    assert made["machine"] == "box"
    assert made["choices"]["placement"]["value"] == "hybrid"
    assert 0 < made["share"] < 1
    box.write_text(rates + "memory_gib = 0\n")
    assert run(str(folder), "--machine", str(box)) == 2
    assert "memory_gib = 0" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--machine=cray-1",), 2, "rtx4060-laptop"),
        (("--machine=none.toml",), 2, "none.toml"),
        (("--context=0",), 2, "context"),
        (("--context=1000000",), 2, "context = 1000000"),
        (("--device=cuda",), 2, "cuda"),
        (("--set=experts.cache=0",), 2, "experts.cache"),
        (("--set=experts.fill=some",), 2, "balanced"),
        (("--machine=rtx4060-laptop", "--device=emulated"), 2, "emulated.machine"),
        (("--device=emulated", "--set=emulated.memory=1KiB"), 1, "device has"),
    ],
)
def test_refusals(
    folder: Path,
    arguments: tuple[str, ...],
    code: int,
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(str(folder), *arguments) == code
    told = capfd.readouterr()
    assert said in told.err
    assert "Traceback" not in told.err
    assert told.out == ""


def test_a_missing_model(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("/no/such/model") == 1
    assert "/no/such/model" in capfd.readouterr().err


def test_a_measured_profile_is_used_and_a_foreign_one_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    facts = open_model(folder).facts
    emulated = ("--device=emulated", "--set=emulated.link=3GB/s")
    assert (
        "not measured yet" in planned(capfd, str(folder), *emulated)["choices"]["rates"]["reason"]
    )
    config = EngineConfig.of(**{"emulated.link": "3GB/s"})
    mark = profile_mark(config, Machine.probe(), facts)
    row = ProfileRow(3e9, 9e9, 2.5e9, 7e9, 1e-6, 2e-6)
    profile = BandwidthProfile(mark, dict.fromkeys(layer_kinds(facts), row))
    profile.save(profile_path(tmp_path, facts))
    made = planned(capfd, str(folder), *emulated)
    assert made["choices"]["rates"]["value"] == "measured"
    assert next(iter(made["rates"].values()))["host_shared"] == 7e9
    other = planned(capfd, str(folder), "--device=emulated")
    assert other["choices"]["rates"]["value"] == "default"
    assert "link 3e+09 B/s" in other["choices"]["rates"]["reason"]
