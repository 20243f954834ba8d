"""The tuner counts what layers of each kind did, and says so to status and metrics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.api.live_metrics import live_figures
from headrace.device.emulated import EmulatedDevice, Emulation
from headrace.experts.tuning import Tuner
from headrace.planning.profile import ProfileRow

ROW = ProfileRow(4e9, 8e9, 3e9, 6e9, 1e-6, 2e-6)
KINDS = ["wide", None, "narrow", "wide"]
LAYERS = np.array([[5, 2, 1, 2], [4, 4, 0, 0], [6, 1, 3, 2]], np.int32)  # of wide, narrow, wide


@pytest.fixture
def tuner() -> Iterator[Tuner]:
    with EmulatedDevice(Emulation(memory=1 << 20)) as device:
        rows = {"wide": ROW, "narrow": ROW}
        yield Tuner(device, KINDS, [4000, 0, 1000, 4000], rows, "all", most=8, slots=9)


def step(tuner: Tuner) -> None:
    links = [(1, 2000), (0, 0), (3, 6000)]
    hosts = [(2, 3000), (0, 0), (2, 5000)]
    tuner.observe(LAYERS, links, hosts)


def test_counts_and_times_are_by_kind(tuner: Tuner) -> None:
    step(tuner)
    step(tuner)
    told = tuner.status()
    assert {name: told[name] for name in ("decode_steps", "uses", "hits", "fills", "host")} == {
        "decode_steps": 2, "uses": 30, "hits": 14, "fills": 8, "host": 8,
    }  # fmt: skip
    wide, narrow = told["kinds"]["wide"], told["kinds"]["narrow"]
    assert [wide[name] for name in ("uses", "hits", "fills", "host")] == [22, 6, 8, 8]
    assert [narrow[name] for name in ("uses", "hits", "fills", "host")] == [8, 8, 0, 0]
    assert wide["branches"]["link"]["layers"] == 4
    assert wide["branches"]["link"]["observed_s"] == pytest.approx(4e-6)
    assert wide["branches"]["host"]["observed_s"] == pytest.approx(4e-6)
    assert narrow["branches"]["link"]["layers"] == 0
    assert narrow["q"] == list(range(9))


def test_every_series_has_a_label_per_kind(tuner: Tuner) -> None:
    step(tuner)
    names = ("device_bytes", "expert_slots", "expert_bytes", "kv_tokens", "state_slots")
    last = {"pause_s": 0.25}
    live = {"budget": dict.fromkeys(names, 7), "resizes": 3, "recording": False}
    figures = live_figures({**live, "last_resize": last, "experts": tuner.status()})
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in figures
        for sample in family.samples
    }
    for kind, hits in (("wide", 3), ("narrow", 4)):
        assert samples["headrace_expert_hits_total", ("kind", kind)] == hits
        labels = (("branch", "host"), ("kind", kind))
        assert ("headrace_expert_predicted_seconds", *labels) in samples
        rate = ("headrace_expert_rate_bytes_per_second", *labels, ("shared", "true"))
        assert samples[rate] == tuner.row(kind).host_shared > 0
        assert samples["headrace_expert_fixed_seconds", *labels] == 2e-6
    assert samples["headrace_engine_last_resize_seconds",] == 0.25
    assert samples["headrace_engine_resizes_total",] == 3
