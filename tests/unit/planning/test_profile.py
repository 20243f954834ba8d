"""Profiles: kept, refused, corrected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.device.clock import VirtualClock
from headrace.errors import ConfigError
from headrace.planning.machines import declared
from headrace.planning.profile import BandwidthProfile, Correction, ProfileRow, side_by_side

ROW = ProfileRow(20e9, 60e9, 18e9, 35e9, 3e-6, 8e-6)
S = 1 << 20


def test_round_trip(tmp_path: Path) -> None:
    profile = BandwidthProfile("zen3 x 2, mixtral", {"bf16 64x128 t2": ROW})
    profile.save(tmp_path / "deep" / "p.json")
    again = BandwidthProfile.load(tmp_path / "deep" / "p.json", "zen3 x 2, mixtral")
    assert again == profile
    assert again.row("bf16 64x128 t2") == ROW
    assert again.row("other") is None
    assert [f.name for f in (tmp_path / "deep").iterdir()] == ["p.json"]


def test_another_machine_is_named(tmp_path: Path) -> None:
    BandwidthProfile("theirs", {"k": ROW}).save(tmp_path / "p.json")
    with pytest.raises(ConfigError, match=r"'theirs'.*'ours'.*headrace measure"):
        BandwidthProfile.load(tmp_path / "p.json", "ours")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b.update(format="x"), "another kind"),
        (lambda b: b.update(version=2), "version 2"),
        (lambda b: b.pop("rows"), "no rows"),
        (lambda b: b["rows"]["k"].pop("link"), "other fields"),
        (lambda b: b["rows"]["k"].update(link="fast"), "no number"),
        (lambda b: b["rows"]["k"].update(link=True), "no number"),
        (lambda b: b["rows"]["k"].update(link=0), "above 0"),
        (lambda b: b["rows"]["k"].update(fill_s=-1), "0 or more"),
    ],
)
def test_bad_files(tmp_path: Path, change, says: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "p.json"
    BandwidthProfile("ours", {"k": ROW}).save(path)
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))
    with pytest.raises(ConfigError, match=says):
        BandwidthProfile.load(path, "ours")


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_no_profile(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError):
        BandwidthProfile.load(tmp_path / "p.json", "ours")
    with pytest.raises(ConfigError):
        BandwidthProfile.load(tmp_path / "none.json", "ours")


def observe(correction: Correction, true: ProfileRow, fills: int, host: int) -> None:
    """Both branches as they would run on `true`."""
    fill_s, host_s = seconds(true, fills * S, host * S)
    correction.observe(S, fills, host, fill_s=fill_s, host_s=host_s)


def seconds(row: ProfileRow, link: int, host: int) -> tuple[float, float]:
    """Until each is done, by the clock that runs both side by side."""
    clock = VirtualClock(row, kernels=1.0, flops=1.0)
    clock.transfer(link)
    clock.host_work(host)
    clock.wait_link()
    clock.wait_host()
    return clock.link.done_s, clock.host.done_s


@given(st.integers(0, 1 << 24), st.integers(0, 1 << 24))
def test_side_by_side_is_as_the_clock_runs(link: int, host: int) -> None:
    for row in (ROW, ProfileRow(3e9, 5e9, 1e9, 2e9, 0.002, 0.0), ProfileRow(1e9, 9e9, 1e9, 1e9)):
        assert side_by_side(row, link, host) == pytest.approx(seconds(row, link, host), abs=1e-9)


@given(st.floats(0.05, 20), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=5))
def test_a_slower_link_is_followed_whatever_the_split(
    factor: float, splits: list[tuple[int, int]]
) -> None:
    true = ProfileRow(
        ROW.link * factor, ROW.host, ROW.link_shared * factor, ROW.host_shared, 3e-6, 8e-6
    )
    correction = Correction(ROW)
    for i in range(50):
        observe(correction, true, *splits[i % len(splits)])
        observe(correction, true, 2, 1)
    assert correction.row.link == pytest.approx(true.link, rel=0.02)
    assert correction.row.link_shared == pytest.approx(true.link_shared, rel=0.02)
    assert correction.row.host == pytest.approx(ROW.host, rel=0.02)


def test_a_throttled_link_settles_within_50_steps_and_recovers() -> None:
    slow = ProfileRow(ROW.link / 4, ROW.host, ROW.link_shared / 4, ROW.host_shared, 3e-6, 8e-6)
    correction = Correction(ROW)
    for true in (ROW, slow, ROW):
        for _ in range(50):
            observe(correction, true, 2, 3)
        assert correction.row.link_shared == pytest.approx(true.link_shared, rel=0.02)


def test_single_outliers_change_nothing() -> None:
    correction = Correction(ROW)
    for i in range(60):
        if i % 5 == 4:
            correction.observe(S, 1, 1, fill_s=0.5, host_s=0.5)
        else:
            observe(correction, ROW, 1, 1)
    assert correction.row.link_shared == pytest.approx(ROW.link_shared, rel=1e-6)
    assert correction.row.host_shared == pytest.approx(ROW.host_shared, rel=1e-6)


def test_times_shorter_than_the_fixed_cost_are_ignored() -> None:
    correction = Correction(ROW)
    for _ in range(30):
        correction.observe(S, 1, 1, fill_s=1e-9, host_s=1e-9)
    assert correction.row == ROW


def test_declared_machines(tmp_path: Path) -> None:
    assert declared("rtx4060-laptop").row.link == pytest.approx(11.8e9)
    assert declared("rtx5090-desktop").row.host_shared == pytest.approx(4.8e9)
    path = tmp_path / "box.toml"
    path.write_text('name = "box"\nlink_gbps = 10\nhost_gbps = 30\nhandoff_us = 12\n')
    box = declared(str(path))
    assert (box.name, box.row.host_shared) == ("box", pytest.approx(20e9))
    assert box.row.handoff_s == pytest.approx(12e-6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("link_gbps = 10", "no host_gbps"),
        ("link_gbps = 10\nhost_gbps = 'x'", "a number"),
        ("link_gbps = 10\nhost_gbps = 0", "box.toml: host_gbps = 0; expected a number above 0"),
        ("link_gbps = nan\nhost_gbps = 3", "box.toml: link_gbps = nan"),
        ("link_gbps = 1\nhost_gbps = inf", "box.toml: host_gbps = inf"),
        ("link_gbps = 1\nhost_gbps = 3\nfill_us = -1", "fill_us = -1.* at least 0"),
        ("a = " + "[" * 20_000, "box.toml"),
        ("link_gbps = 10\nhost_gbps = 3\nspeed = 4", "unknown key 'speed'"),
        ("link_gbps = ", "TOML"),
    ],
)
def test_bad_machines(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "box.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        declared(str(path))


def test_an_unknown_machine_names_the_known() -> None:
    with pytest.raises(ConfigError, match="rtx4060-laptop"):
        declared("cray-1")
