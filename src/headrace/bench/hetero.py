"""Fetching against computing: one layer's misses, split in every way, on links of several speeds.

The device is the emulated one in real time: a thread copies rows at the link's rate while the host
pool reads others from the same memory. What a GPU computes is paced, not computed, so that the two
branches have the machine to themselves. Times are wall times of the very code that serves.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.bench.bank import DTYPES, random_bank
from headrace.bench.checkpoint import Progress, Shape
from headrace.bench.control import planning, resized_slots, resizing
from headrace.bench.layers import DEVICE_BYTES, SLOTS, Layers
from headrace.bench.live import overlap, throttling
from headrace.bench.report import fingerprint
from headrace.charts import Line, line_chart
from headrace.errors import CapacityError, ConfigError
from headrace.experts.measure import MOST_ROWS
from headrace.planning.budget import mib
from headrace.planning.machine import Machine
from headrace.planning.profile import ProfileRow
from headrace.planning.split import balanced, branch_times, fill_none, guarded, paper

LINKS = (0.25, 0.5, 1.0)  # of the measured host bandwidth

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Medians in seconds of one split: `fills` of the misses over the link."""

    fills: int
    wall_s: float
    fill_s: float
    host_s: float


def sweep(layers: Layers, misses: int, steps: int) -> tuple[list[Point], ProfileRow]:
    """Every split of `misses`, and the bandwidths, in turns: a slow moment hits all alike."""
    rows = [layers.measured()]
    placed = [layers.placed(rows[0], q / misses, misses) for q in range(misses + 1)]
    runs = [layers.captured(one, misses) for one in placed]
    walls: list[list[float]] = [[] for _ in placed]
    fills: list[list[float]] = [[] for _ in placed]
    hosts: list[list[float]] = [[] for _ in placed]
    for _ in range(steps):
        rows.append(layers.measured())
        for q, run_step in enumerate(runs):
            walls[q].append(run_step())
    for q, one in enumerate(placed):
        times = one.status()["kinds"][layers.kind]["branches"]
        fills[q].append(times["link"]["observed_s"])
        hosts[q].append(times["host"]["observed_s"])
        one.close()
    points = [
        Point(q, *(statistics.median(values[q]) for values in (walls, fills, hosts)))
        for q in range(misses + 1)
    ]
    return points, _middle(rows)


def _middle(rows: list[ProfileRow]) -> ProfileRow:
    """The median of each number."""
    told = [asdict(row) for row in rows]
    return ProfileRow(**{name: statistics.median(row[name] for row in told) for name in told[0]})


def judged(points: list[Point], row: ProfileRow, row_bytes: int, misses: int) -> dict[str, Any]:
    """What each rule chose, what that took, and how near the prediction came."""
    best = min(point.wall_s for point in points)
    rules: dict[str, Callable[[int], int]] = {
        "balanced": balanced(row, row_bytes),
        "guarded": guarded(row, row_bytes),
        "paper": paper(row),
        "fill-all": lambda m: m,
        "host-only": fill_none,
    }
    told = {}
    for name, rule in rules.items():
        wall_s = points[rule(misses)].wall_s
        told[name] = {"q": rule(misses), "seconds": wall_s, "over_best": wall_s / best - 1}
    subtracted = ProfileRow.subtracting(row.link, row.host)
    return {
        "best_q": min(points, key=lambda point: point.wall_s).fills,
        "rules": told,
        "error": _error(points, row, row_bytes, misses),
        "error_of_subtraction": _error(points, subtracted, row_bytes, misses),
    }


def _error(points: list[Point], row: ProfileRow, row_bytes: int, misses: int) -> float:
    """Median relative error of the predicted branch times over all splits."""
    errors = []
    for point in points:
        times = branch_times(row, row_bytes, misses, point.fills)
        for predicted, observed in ((times.fill_s, point.fill_s), (times.host_s, point.host_s)):
            if observed > 0:
                errors.append(abs(predicted - observed) / observed)
    return statistics.median(errors)


def charts(result: dict[str, Any]) -> dict[str, str]:
    """Name -> SVG: step time against fills, observed and predicted, a chart per link."""
    drawn = {}
    for link in result["links"]:
        observed = [(p["fills"], 1e3 * p["wall_s"]) for p in link["points"]]
        row = ProfileRow(**link["row"])
        subtracted = ProfileRow.subtracting(row.link, row.host)
        nbytes, misses = result["row_bytes"], result["misses"]

        def times(row: ProfileRow, nbytes: int = nbytes, misses: int = misses) -> Points:
            return tuple(
                (q, 1e3 * branch_times(row, nbytes, misses, q).step_s) for q in range(misses + 1)
            )

        lines = [
            Line("observed", tuple(observed), strong=True),
            Line("predicted", times(row)),
            Line("by subtraction", times(subtracted), dashed=True),
        ]
        share = link["link_share"]
        drawn[f"split-{share:g}"] = line_chart(
            lines,
            title=f"{misses} misses, link at {share:.0%} of the host's bandwidth",
            subtitle="milliseconds of one layer; the rest of the misses is computed on the CPU",
            x_label="misses that are fetched over the link",
            y_label="ms",
        )
    return drawn


def _overlaps(shape: Shape, link: float) -> list[dict[str, float]]:
    """Eight times as many layers, as small: the first one's copies have nothing to hide behind."""
    experts = max(shape.top_k, shape.experts // 8)
    bank = random_bank(replace(shape, layers=8 * shape.layers, experts=experts))
    return [overlap(bank, link, computing) for computing in (0.5, 1.0, 2.0)]


def check(shape: Shape, misses: int, machine: Machine) -> None:
    """Raises ConfigError for layers in which not every expert that is asked for can be missing,
    CapacityError where memory does not hold them.
    """
    if misses > SLOTS:
        raise ConfigError(f"{misses} misses", expected=f"at most {SLOTS}, the slots of the device")
    rows = shape.layers * shape.experts
    if rows < SLOTS + misses:
        raise ConfigError(
            f"{shape.layers} layers of {shape.experts} experts",
            expected=f"{SLOTS + misses} experts at least: the device has {SLOTS} slots, and none "
            f"of the {misses} experts that come next may be in them",
            fix="give more --layers or --experts",
        )
    row = 3 * shape.hidden * shape.width * DTYPES[shape.dtype].itemsize
    # Every split has slots of its own, bandwidths are measured beside them; `_overlaps` streams.
    slots = max((misses + 1) * SLOTS + MOST_ROWS, 1 + 2 * max(misses, shape.experts // 8))
    wanted = (2 * rows + slots) * row  # the layers, and as many bytes of smaller ones
    if wanted > machine.ram_free:
        raise CapacityError(
            f"{shape.name()} needs {mib(wanted)} and {mib(machine.ram_free)} of memory are free",
            fix="give fewer --layers or --experts",
        )
    if slots * row > DEVICE_BYTES:
        raise CapacityError(
            f"experts of {mib(row)} in {slots} slots of a device with {mib(DEVICE_BYTES)}",
            expected=f"{mib(DEVICE_BYTES // slots)} at most",
            fix="give a smaller --hidden or --width, or fewer --misses",
        )


def run(
    *, shape: Shape, misses: int, steps: int, links: tuple[float, ...], progress: Progress
) -> dict[str, Any]:
    """The sweep on links of these shares of the host's bandwidth."""
    progress(0, len(links), "filling memory")
    bank = random_bank(shape)
    layers = Layers(bank, 0.0)
    alone = layers.measured()
    layers.close()
    row_bytes = bank.row_bytes(0)
    results = []
    for i, share in enumerate(links):
        progress(i, len(links), f"link at {share:.0%} of the host")
        layers = Layers(bank, share * alone.host)
        try:
            points, row = sweep(layers, misses, steps)
        finally:
            layers.close()
        results.append(
            {
                "link_share": share,
                "row": asdict(row),
                "points": [asdict(point) for point in points],
                "predicted": [
                    branch_times(row, row_bytes, misses, q).step_s for q in range(misses + 1)
                ],
                **judged(points, row, row_bytes, misses),
            }
        )
    progress(len(links), len(links), "control")
    return {
        "throttling": throttling(bank, links[-1] * alone.host, misses),
        "overlap": _overlaps(shape, alone.host / 2),
        "bench": "hetero",
        "row_bytes": row_bytes,
        "misses": misses,
        "layers": shape.layers,
        "steps": steps,
        "unthrottled": asdict(alone),
        "links": results,
        "planning": planning(),
        "resizing": resizing(bank, resized_slots(bank)),
        "machine": fingerprint(threads=2, isa=layers.device.pool.isa),
    }
