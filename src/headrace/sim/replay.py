"""Replay of recorded decode routing through the engine's own table, policies and fill rules.

Every decode step of a trace counts, the cold start included; policies with a set of their own start
with it resident, which flatters them: Belady's bound is that of a cache that starts empty. A prompt
moves nothing unless the policy asks for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.errors import ConfigError
from headrace.planning.facts import ExpertKey
from headrace.planning.lru import Policy, SlotTable
from headrace.planning.policies import POLICIES
from headrace.planning.profile import ProfileRow
from headrace.planning.split import (
    FillRule,
    Returns,
    auto_rule,
    balanced,
    branch_times,
    fill_all,
    fill_none,
    from_table,
    guarded,
    investing,
    paper,
    plan_misses,
    tabulate,
)
from headrace.planning.trace import NONE, Ids, RoutingTrace, TraceModel
from headrace.sim.belady import belady_misses

CAPACITIES = (0.05, 0.11, 0.20, 0.37, 0.50)
PROFILE_SHARE = 0.25  # of the decode steps; what `static-profile` has seen before
BELADY = "belady"


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One step: prompt tokens per expert, and what decoding uses in each MoE layer."""

    prefill: dict[ExpertKey, int]
    prompt_tokens: int
    active: tuple[tuple[ExpertKey, ...], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy at one capacity."""

    policy: str
    share: float  # capacity over all experts
    slots: int
    uses: int  # distinct experts per layer and step, summed
    misses: int
    fills: int
    steps: int
    miss_s: float = 0.0  # predicted time spent on misses, all steps

    @property
    def miss_rate(self) -> float:
        return self.misses / self.uses if self.uses else 0.0

    @property
    def step_s(self) -> float:
        return self.miss_s / self.steps if self.steps else 0.0


def prepare(trace: RoutingTrace) -> list[ReplayStep]:
    """The trace as experts, once for all replays. Raises ConfigError where nothing is decoded."""
    keys = [[ExpertKey(layer, e) for e in range(n)] for layer, n in enumerate(trace.model.experts)]
    layers = trace.model.moe_layers
    steps = []
    for ids, prefill in trace.steps():
        counts: dict[ExpertKey, int] = {}
        if prefill.any():
            counts = _counts(ids[prefill], layers)
        active: list[tuple[ExpertKey, ...]] = []
        if not prefill.all():
            decode = ids[~prefill]
            for i, layer in enumerate(layers):
                chosen = dict.fromkeys(decode[:, i].ravel().tolist())
                chosen.pop(NONE, None)
                active.append(tuple(keys[layer][e] for e in chosen))
        steps.append(ReplayStep(counts, int(prefill.sum()), tuple(active)))
    if not any(step.active for step in steps):
        raise ConfigError("the trace has no decode steps", fix="record while answers are generated")
    return steps


def _counts(ids: Ids, layers: Sequence[int]) -> dict[ExpertKey, int]:
    counts = {}
    for i, layer in enumerate(layers):
        experts, tokens = np.unique(ids[:, i], return_counts=True)
        for expert, count in zip(experts.tolist(), tokens.tolist(), strict=True):
            if expert != NONE:
                counts[ExpertKey(layer, expert)] = count
    return counts


def slots_for(model: TraceModel, share: float) -> int:
    """Slots that hold this share of all experts, and at least what one layer uses at once."""
    if not 0 < share <= 1:
        raise ConfigError(f"a capacity of {share:.0%}", expected="more than 0% and at most 100%")
    return max(model.widest, round(share * sum(model.experts)))


def profile_of(model: TraceModel, steps: Sequence[ReplayStep]) -> Counter[int]:
    """Uses of each row in the first decode steps, for policies that go by a profile."""
    base = np.concatenate([[0], np.cumsum(model.experts)]).tolist()
    decode = [step.active for step in steps if step.active]
    seen: Counter[int] = Counter()
    for active in decode[: max(1, round(PROFILE_SHARE * len(decode)))]:
        for keys in active:
            seen.update(base[key.layer] + key.expert for key in keys)
    return seen


def replay(
    model: TraceModel,
    steps: Sequence[ReplayStep],
    policy: Policy,
    share: float,
    rule: FillRule = fill_all,
    row: ProfileRow | None = None,
    *,
    learns: bool = False,
) -> Outcome:
    """One policy at one capacity. With `row` the time of the misses is predicted, too.

    `learns`: instead of `rule`, `auto_rule` with the returns of this very cache, between steps.
    """
    slots = SlotTable(model.experts, slots_for(model, share), policy)
    uses = misses = fills = decoded = 0
    miss_s = 0.0
    auto = _Auto(row, model, steps, slots.capacity) if learns and row is not None else None
    for step in steps:
        if step.prompt_tokens:
            slots.prefilled(step.prefill, step.prompt_tokens)
        if not step.active:
            continue
        decoded += 1
        slots.begin_step()
        if auto is not None:
            rule = auto.rule()
        for active in step.active:
            plan = plan_misses(active, slots, rule)
            uses += len(active)
            filled, host = len(plan.fills), len(plan.host)
            misses += filled + host
            fills += filled
            if auto is not None:
                auto.returns.observe(len(active), len(plan.hits), filled, host)
            if row is not None and (filled or host):
                row_bytes = model.row_bytes[active[0].layer]
                miss_s += branch_times(row, row_bytes, filled + host, filled).step_s
    slots.check()
    return Outcome(policy.name, share, slots.capacity, uses, misses, fills, decoded, miss_s)


class _Auto:
    """A rule that is tabulated anew when its returns have moved by a twentieth."""

    def __init__(
        self, row: ProfileRow, model: TraceModel, steps: Sequence[ReplayStep], slots: int
    ) -> None:
        self._row, self._row_bytes = row, max(model.row_bytes)
        self._most = max(len(keys) for step in steps for keys in step.active)
        self.returns = Returns(row, self._row_bytes, slots)
        self._tabulated = -1.0
        self._rule: FillRule = fill_none

    def rule(self) -> FillRule:
        value = self.returns.value
        if abs(value - self._tabulated) > 0.05 * self._tabulated:
            rule = auto_rule(self._row, self._row_bytes, value)
            self._rule, self._tabulated = from_table(tabulate(rule, self._most)), value
        return self._rule


def bound(model: TraceModel, steps: Sequence[ReplayStep], share: float) -> Outcome:
    """Belady's bound at this capacity."""
    base = np.concatenate([[0], np.cumsum(model.experts)]).tolist()
    uses = [base[key.layer] + key.expert for step in steps for keys in step.active for key in keys]
    slots = slots_for(model, share)
    misses = belady_misses(uses, slots)
    decoded = sum(1 for step in steps if step.active)
    return Outcome(BELADY, share, slots, len(uses), misses, misses, decoded)


def compare(
    model: TraceModel,
    steps: Sequence[ReplayStep],
    shares: Sequence[float] = CAPACITIES,
    names: Sequence[str] = tuple(POLICIES),
    progress: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Every policy at every capacity, and Belady's bound. Raises ConfigError on a strange name."""
    profile = profile_of(model, steps)
    outcomes = []
    for name in names:
        if name not in POLICIES:
            raise ConfigError(f"there is no policy {name!r}", expected=", ".join(POLICIES))
        progress(name)
        for share in shares:
            policy = POLICIES[name](model.experts, profile)
            outcomes.append(replay(model, steps, policy, share))
    progress(BELADY)
    return outcomes + [bound(model, steps, share) for share in shares]


def rules_for(row: ProfileRow, row_bytes: int, most: int) -> dict[str, FillRule]:
    """The fill rules by name, tabulated as the engine does."""
    rules = {
        "fill-all": fill_all,
        "host-only": fill_none,
        "paper": paper(row),
        "balanced": balanced(row, row_bytes),
        "guarded": guarded(row, row_bytes),
        "investing": investing(row, row_bytes),
    }
    return {name: from_table(tabulate(rule, most)) for name, rule in rules.items()}


def predict(
    model: TraceModel,
    steps: Sequence[ReplayStep],
    policy: Callable[[], Policy],
    row: ProfileRow,
    share: float,
) -> dict[str, Outcome]:
    """Step time by fill rule on one declared machine."""
    row_bytes = max(model.row_bytes)
    most = max(len(keys) for step in steps for keys in step.active)
    outcomes = {
        name: replay(model, steps, policy(), share, rule, row)
        for name, rule in rules_for(row, row_bytes, most).items()
    }
    return outcomes | {"auto": replay(model, steps, policy(), share, fill_none, row, learns=True)}
