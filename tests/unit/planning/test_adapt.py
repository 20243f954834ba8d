"""The split follows the machine: throttled, restored, noisy, and where a branch was given up."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.planning.adapt import AdaptiveQuota
from headrace.planning.profile import ProfileRow
from headrace.planning.split import branch_times

S = 4 << 20
ROW = ProfileRow(20e9, 50e9, 18e9, 42e9, 3e-6, 8e-6)


def throttled(row: ProfileRow, by: float) -> ProfileRow:
    return replace(row, link=row.link / by, link_shared=row.link_shared / by)


class Box:
    """A machine with true bandwidths; runs steps of several layers and times them badly."""

    def __init__(self, quota: AdaptiveQuota, layers: int, noise: float, seed: int) -> None:
        self.quota, self.layers, self.noise = quota, layers, noise
        self.random = random.Random(seed)

    def jitter(self) -> float:
        late = 30.0 if self.random.random() < 0.05 else 1.0
        return late * self.random.lognormvariate(0, self.noise)

    def run(self, true: ProfileRow, steps: int) -> list[float]:
        """Relative loss of each step against the best split of each layer."""
        losses = []
        for _ in range(steps):
            spent = best = 0.0
            for _ in range(self.layers):
                misses = self.random.randint(0, 8)
                fills = self.quota.table[misses]
                times = branch_times(true, S, misses, fills)
                spent += times.step_s
                best += min(branch_times(true, S, misses, q).step_s for q in range(misses + 1))
                self.quota.observe(
                    fills,
                    misses - fills,
                    fill_s=times.fill_s * self.jitter(),
                    host_s=times.host_s * self.jitter(),
                )
            self.quota.retabulate()
            losses.append(spent / best - 1 if best else 0.0)
        return losses


def mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


@pytest.mark.parametrize("layers", [12, 30])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_throttled_link_settles_within_50_steps_and_recovers(layers: int, noise: float) -> None:
    slow = throttled(ROW, 4)
    box = Box(AdaptiveQuota(ROW, S, "balanced", 16), layers, noise, seed=layers)
    box.run(ROW, 50)
    start = box.quota.table
    assert start[8] == 2
    assert mean(box.run(slow, 2)) > 0.5
    box.run(slow, 48)
    assert mean(box.run(slow, 100)) < 0.08
    assert sum(box.quota.table) < sum(start) / 4
    box.run(ROW, 80)
    assert mean(box.run(ROW, 50)) < 0.03
    assert box.quota.row.link == pytest.approx(ROW.link, rel=0.2)


@pytest.mark.parametrize("by", [4, 12])
def test_a_link_that_was_given_up_costs_little_and_is_tried_again(by: float) -> None:
    weak = throttled(ROW, by)
    box = Box(AdaptiveQuota(weak, S, "balanced", 16), layers=10, noise=0.05, seed=3)
    assert not any(box.quota.table)
    assert 0 < mean(box.run(weak, 600)) < 0.04
    assert any(box.run(ROW, 1) and box.quota.table[8] == 2 for _ in range(400))
    assert mean(box.run(ROW, 50)) < 0.04


def test_a_host_that_was_given_up_is_tried_again() -> None:
    weak = replace(ROW, host=ROW.host / 50, host_shared=ROW.host_shared / 50)
    box = Box(AdaptiveQuota(weak, S, "balanced", 16), layers=10, noise=0.05, seed=4)
    assert box.quota.table == tuple(range(17))
    assert 0 < mean(box.run(weak, 600)) < 0.04
    box.run(ROW, 400)
    assert mean(box.run(ROW, 40)) < 0.04


def test_rules_without_bandwidths_never_change() -> None:
    for fill in ("all", "none", 0.5):
        box = Box(AdaptiveQuota(ROW, S, fill, 16), layers=4, noise=0.1, seed=5)
        before = box.quota.table
        box.run(throttled(ROW, 50), 60)
        assert box.quota.table == before
        assert box.quota.retabulate() is None


def test_a_quiet_machine_makes_no_new_tables() -> None:
    quota = AdaptiveQuota(ROW, S, "paper", 16)
    for _ in range(100):
        times = quota.predicted(8, quota.table[8])
        fills = quota.table[8]
        quota.observe(fills, 8 - fills, fill_s=times.fill_s, host_s=times.host_s)
        assert quota.retabulate() is None


def test_predictions_are_reported_beside_what_was_seen() -> None:
    quota = AdaptiveQuota(ROW, S, "none", 16)
    assert quota.timings()["host"].layers == 0
    seen = quota.predicted(4, 0).host_s
    quota.observe(0, 4, fill_s=0.0, host_s=1.25 * seen)
    quota.retabulate()
    timing = quota.timings()["host"]
    assert timing.layers == 1
    assert timing.error == pytest.approx(0.2)
    assert timing.observed_s == pytest.approx(1.25 * timing.predicted_s)
    assert quota.timings()["link"].layers == 0
    quota.observe(0, 0, fill_s=0.0, host_s=0.0)
    quota.retabulate()
    assert quota.timings()["host"].layers == 1
