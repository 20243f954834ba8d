"""The virtual clock against timelines worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.device.clock import VirtualClock
from headrace.planning.profile import ProfileRow

ROW = ProfileRow(
    link=100.0, host=50.0, link_shared=80.0, host_shared=20.0, fill_s=0.5, handoff_s=0.25
)
FREE = replace(ROW, fill_s=0.0, handoff_s=0.0)
ALONE = replace(FREE, link_shared=100.0, host_shared=50.0)


def clock_of(row: ProfileRow = ROW) -> VirtualClock:
    return VirtualClock(row, kernels=1000.0, flops=10_000.0)


def near(seconds: float) -> object:
    return pytest.approx(seconds, rel=1e-9, abs=1e-9)


def test_kernels_take_the_longer_of_bytes_and_operations() -> None:
    clock = clock_of()
    clock.kernel(500, 100)
    assert clock.now == near(0.5)
    clock.kernel(1, 20_000)
    assert clock.now == clock.compute_s == near(2.5)


def test_each_alone() -> None:
    clock = clock_of()
    clock.transfer(200, rows=3)
    clock.wait_link()
    assert clock.now == near(0.5 + 2.0)
    clock.host_work(100, rows=2)
    clock.wait_host()
    assert clock.now == near(2.5 + 0.25 + 2.0)
    assert clock.link.log == [(3, 2_500_000_000)]
    assert clock.host.log == [(2, 2_250_000_000)]
    assert clock.compute_s == 0.0


def test_both_at_once_take_from_each_other() -> None:
    """0..0.25 both fixed; to 0.5 the host computes beside the link's fixed part: 5 bytes of 65.
    Then 80 and 20 bytes/s: the link's 160 end at 2.5, with 40 of the host's; 20 are left, alone.
    """
    clock = clock_of()
    clock.host_work(65)
    clock.transfer(160)
    clock.wait_link()
    assert clock.now == near(2.5)
    clock.wait_host()
    assert clock.now == near(2.5 + 20 / 50)


def test_kernels_hide_what_runs_beside_them() -> None:
    clock = clock_of(FREE)
    clock.transfer(100)  # done at 1.0
    clock.kernel(3000, 0)  # until 3.0
    clock.wait_link()
    assert clock.now == near(3.0)
    clock.transfer(200)  # until 5.0
    clock.kernel(1000, 0)  # until 4.0
    clock.wait_link()
    assert clock.now == near(5.0)


def test_a_mark_is_waited_for_and_no_more() -> None:
    clock = clock_of(FREE)
    first = clock.transfer(100)
    assert clock.marked == first
    clock.transfer(300)
    clock.wait_link(first)
    assert clock.now == near(1.0)
    clock.kernel(500, 0)  # the second one goes on meanwhile
    clock.wait_link()
    assert clock.now == near(4.0)
    clock.wait_link(first)
    assert clock.now == near(4.0)


def test_nothing_costs_nothing_and_is_told() -> None:
    clock = clock_of()
    clock.transfer(0)
    clock.host_work(0)
    clock.wait_link()
    clock.wait_host()
    assert clock.now == 0.0
    assert clock.link.log == clock.host.log == [(0, 0)]


def test_another_rate_holds_from_now_on() -> None:
    clock = clock_of(FREE)
    clock.transfer(200)
    clock.kernel(1000, 0)
    clock.transfer(0)  # brings the flows up to now: 100 are left
    clock.row = replace(FREE, link=50.0)
    clock.wait_link()
    assert clock.now == near(3.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "link", "host", "wait link", "wait host"]), st.integers(0, 3000)
    ),
    max_size=25,
)


def played(steps: list[tuple[str, int]], row: ProfileRow) -> VirtualClock:
    clock = clock_of(row)
    for what, amount in steps:
        if what == "kernel":
            clock.kernel(amount, 0)
        elif what == "link":
            clock.transfer(amount, 1)
        elif what == "host":
            clock.host_work(amount, 1)
        elif what == "wait link":
            clock.wait_link()
        else:
            clock.wait_host()
    clock.wait_link()
    clock.wait_host()
    return clock


def alone(steps: list[tuple[str, int]], row: ProfileRow) -> tuple[float, float, float]:
    """Seconds of kernels, link and host, each by itself."""
    kernels = sum(n for what, n in steps if what == "kernel") / 1000.0
    link = sum(row.fill_s + n / row.link for what, n in steps if what == "link" and n)
    host = sum(row.handoff_s + n / row.host for what, n in steps if what == "host" and n)
    return kernels, link, host


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([ROW, FREE, ALONE]))
def test_not_sooner_than_the_slowest_nor_later_than_all_in_turn(
    steps: list[tuple[str, int]], row: ProfileRow
) -> None:
    each, clock = alone(steps, row), played(steps, row)
    assert clock.now >= max(each) * (1 - 1e-9)
    # Side by side each has at least its shared rate.
    slower = replace(row, link=row.link_shared, host=row.host_shared)
    assert clock.now <= sum(alone(steps, slower)) * (1 + 1e-9) + 1e-9
    if row is ALONE:
        assert clock.now <= sum(each) * (1 + 1e-9) + 1e-9
    assert len(clock.link.log) == sum(what == "link" for what, _ in steps)
    assert len(clock.host.log) == sum(what == "host" for what, _ in steps)
    again = played(steps, row)
    assert (again.now, again.link.log, again.host.log) == (
        clock.now,
        clock.link.log,
        clock.host.log,
    )
