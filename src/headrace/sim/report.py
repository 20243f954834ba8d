"""What a replay showed, as text tables, JSON and a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headrace.charts import Line, line_chart
from headrace.planning.policies import DEFAULT_POLICY
from headrace.planning.trace import RoutingTrace
from headrace.sim.replay import BELADY, Outcome


def summary(trace: RoutingTrace) -> str:
    """One line about a trace."""
    prompt = int(trace.prefill.sum())
    return (
        f"{trace.model.label()}: {trace.decode_steps} decode steps, "
        f"{trace.tokens - prompt} decoded and {prompt} prompt tokens"
    )


def miss_table(outcomes: Sequence[Outcome]) -> str:
    """Miss rates in percent by policy and capacity, and how far the default is to the bound."""
    shares = list(dict.fromkeys(outcome.share for outcome in outcomes))
    by_policy = _by_policy(outcomes)
    slots = {outcome.share: outcome.slots for outcome in outcomes}
    lines = [
        "decode misses, % of expert uses",
        _line("capacity", [f"{share:.0%}" for share in shares]),
        _line("slots", [str(slots[share]) for share in shares]),
    ]
    for name, rates in by_policy.items():
        lines.append(_line(name, [f"{100 * rates[share].miss_rate:.1f}" for share in shares]))
    if {"lru", BELADY, DEFAULT_POLICY} <= by_policy.keys():
        ways = [way_to_bound(outcomes, DEFAULT_POLICY, share) for share in shares]
        lines.append("")
        lines.append(_line("LRU to Belady, %", [f"{100 * way:.0f}" for way in ways]))
    return "\n".join(lines)


def way_to_bound(outcomes: Sequence[Outcome], policy: str, share: float) -> float:
    """0 where the policy misses as LRU does, 1 where as little as is possible."""
    rate = {name: by_share[share].miss_rate for name, by_share in _by_policy(outcomes).items()}
    gap = rate["lru"] - rate[BELADY]
    return (rate["lru"] - rate[policy]) / gap if gap else 0.0


def time_table(machine: str, predictions: Mapping[float, Mapping[str, Outcome]]) -> str:
    """Predicted milliseconds a decode step spends on misses, by fill rule and capacity."""
    shares = list(predictions)
    rules = list(next(iter(predictions.values())))
    lines = [
        f"{machine}: predicted ms for the misses of a decode step",
        _line("capacity", [f"{share:.0%}" for share in shares]),
    ]
    for rule in rules:
        times = [f"{1e3 * predictions[share][rule].step_s:.2f}" for share in shares]
        lines.append(_line(rule, times))
    return "\n".join(lines)


def miss_chart(outcomes: Sequence[Outcome], subtitle: str) -> str:
    """SVG: miss rate over capacity, a line a policy."""
    lines = [
        Line(
            name,
            tuple((100 * share, 100 * rates[share].miss_rate) for share in sorted(rates)),
            strong=name == DEFAULT_POLICY,
            dashed=name == BELADY,
        )
        for name, rates in _by_policy(outcomes).items()
    ]
    return line_chart(
        lines,
        title="Expert cache misses while decoding",
        subtitle=subtitle,
        x_label="experts that fit on the device, %",
        y_label="misses, % of expert uses",
    )


def as_json(
    trace: RoutingTrace,
    outcomes: Sequence[Outcome],
    predictions: Mapping[str, Mapping[float, Mapping[str, Outcome]]],
) -> dict[str, Any]:
    """Everything the tables show, for other programs."""
    return {
        "model": asdict(trace.model),
        "tokens": trace.tokens,
        "decode_steps": trace.decode_steps,
        "policies": [asdict(outcome) | {"miss_rate": outcome.miss_rate} for outcome in outcomes],
        "machines": {
            machine: [
                asdict(outcome) | {"rule": rule, "step_s": outcome.step_s}
                for rules in by_share.values()
                for rule, outcome in rules.items()
            ]
            for machine, by_share in predictions.items()
        },
    }


def _by_policy(outcomes: Sequence[Outcome]) -> dict[str, dict[float, Outcome]]:
    table: dict[str, dict[float, Outcome]] = {}
    for outcome in outcomes:
        table.setdefault(outcome.policy, {})[outcome.share] = outcome
    return table


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<20}" + "".join(f"{cell:>9}" for cell in cells)
