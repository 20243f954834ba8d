"""What would run, and how fast: a plan with its predictions, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.planning.budget import MemoryBudget, mib
from headrace.planning.cost import Costs
from headrace.planning.resolve import ExecutionPlan

CONTEXTS = (1024, 4096, 16_384, 65_536, 131_072)
SHOWN_MISSES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Prediction:
    """At one context length."""

    context: int
    tokens_per_s: float  # of one sequence that is so long
    first_token_s: float  # after a prompt that is so long, of which nothing is known
    dense_s: float  # of a decode step, and so on
    attention_s: float
    experts_s: float
    misses_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """A plan and what it is expected to do."""

    machine: str
    plan: ExecutionPlan
    share: float  # of all experts that the device holds
    miss_rate: float  # of expert uses while decoding
    stream_from: int | None  # tokens of a chunk from which whole layers are streamed
    predictions: tuple[Prediction, ...]
    disk: float | None = None  # bytes/s, where rows come from it


def forecast(
    machine: str, plan: ExecutionPlan, costs: Costs, contexts: Sequence[int] = ()
) -> Forecast:
    """At the given contexts, or at a few round ones that the plan allows, its longest included."""
    longest = plan.context.value
    lengths = contexts or [*(n for n in CONTEXTS if n < longest), longest]
    chunk = plan.step_tokens.value
    return Forecast(
        machine,
        plan,
        costs.share,
        costs.miss_rate,
        costs.stream_from(chunk),
        tuple(_predict(costs, length, chunk) for length in lengths),
        None if costs.disk is None else costs.disk.rate,
    )


def _predict(costs: Costs, context: int, chunk: int) -> Prediction:
    step = costs.decode(context)
    return Prediction(
        context,
        1 / step.total_s,
        costs.first_token(context, chunk) + step.total_s,
        step.dense_s,
        step.attention_s,
        step.experts_s,
        step.misses_s,
    )


def memory_rows(budget: MemoryBudget) -> list[tuple[str, int, str]]:
    """(purpose, bytes, what it comes to)."""
    rows = [("weights", budget.weights, "")]
    if budget.slot_bytes:
        rows[0] = ("dense weights", budget.weights, "all that is no expert")
        each = mib(budget.slot_bytes)
        cache, staging = budget.expert_slots, budget.staging_slots
        rows.append(("expert cache", cache * budget.slot_bytes, f"{cache} slots of {each}"))
        rows.append(("staging", staging * budget.slot_bytes, f"{staging} slots"))
        rows.append(("workspace", budget.workspace, "activations and captured steps"))
    kv = f"{budget.kv_blocks} blocks, {budget.kv_tokens} tokens"
    rows.append(("keys and values", budget.kv_bytes, kv))
    if budget.state_slots:
        slots = f"{budget.state_slots} slots, those of saved states included"
        rows.append(("state", budget.state_bytes, slots))
    rows.append(("reserve", budget.reserve, "for other programs"))
    rows.append(("not used", budget.free - budget.used, ""))
    return rows


def as_text(made: Forecast) -> str:
    """Choices, q*, memory and predictions, as tables."""
    plan, experts = made.plan, made.plan.experts
    where = "RAM" if experts is None else "device memory"
    lines = [f"on {made.machine}", "", *plan.lines()]
    if experts is not None and experts.placement.value == "hybrid":
        lines += ["", "misses of a layer -> fills over the link, the rest on the host (q*)"]
        for kind, table in experts.quotas.items():
            shown = [m for m in SHOWN_MISSES if m < len(table)]
            lines.append("  " + "  ".join(f"{m}->{table[m]}" for m in shown) + f"   {kind}")
    lines += ["", f"{where}: {mib(plan.memory.free)}"]
    lines += [f"  {name:<16} {mib(n):>10}  {note}" for name, n, note in memory_rows(plan.memory)]
    if experts is not None and experts.placement.value != "resident":
        lines += ["", f"expected misses: {made.miss_rate:.1%} of expert uses; {_streams(made)}"]
    if made.disk is not None:
        lines += ["", f"expected misses: {made.miss_rate:.1%} of expert uses, {_read(made)}"]
    lines += ["", f"{'context':>9} {'tokens/s':>9} {'first token':>12}"]
    for at in made.predictions:
        lines.append(f"{at.context:>9} {at.tokens_per_s:>9.1f} {at.first_token_s:>10.2f} s")
    lines.append("predicted from bandwidths, one sequence, nothing reused; see docs/planning.md")
    return "\n".join(lines)


def _read(made: Forecast) -> str:
    assert made.disk is not None
    return f"read from disk at {made.disk / 1e9:.2f} GB/s"


def _streams(made: Forecast) -> str:
    if made.stream_from is None:
        return "prompts are read on demand"
    return f"prompt chunks from {made.stream_from} tokens stream whole layers"


def as_json(made: Forecast) -> dict[str, Any]:
    """All of it, for other programs."""
    plan, experts = made.plan, made.plan.experts
    return {
        "machine": made.machine,
        "choices": {name: asdict(choice) for name, choice in plan.choices().items()},
        "memory": asdict(plan.memory) | {"used": plan.memory.used},
        "share": made.share,
        "quotas": {} if experts is None else {k: list(q) for k, q in experts.quotas.items()},
        "rates": {} if experts is None else {k: asdict(r) for k, r in experts.rows.items()},
        "miss_rate": made.miss_rate,
        "stream_from": made.stream_from,
        "disk": made.disk,
        "predictions": [asdict(at) for at in made.predictions],
    }
