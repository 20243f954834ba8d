"""A server's status and a resize's reply, as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.cli.meter import size

SHOWN_MISSES = 8
COUNTS = (
    ("expert slots", "expert_slots"),
    ("kv tokens", "kv_tokens"),
    ("state slots", "state_slots"),
)


def status_text(told: Mapping[str, Any]) -> str:
    engine = told["engine"]
    parts = [_load(told), _plan(engine["plan"])]
    live = engine.get("live")
    if live is not None:
        parts.append(_budget(live))
        if "experts" in live:
            parts.append(_experts(live["experts"]))
        if "tier" in live:
            parts.append(_tier(live["tier"]))
        if "last_resize" in live:
            parts.append("last resize\n" + resize_text(live["last_resize"]).rstrip())
    return "\n\n".join(parts) + "\n"


def _tier(told: Mapping[str, Any]) -> str:
    flat = dict(told) | told.get("foresight", {})
    rows = [
        (name.replace("_", " "), f"{n:.4g}" if isinstance(n, float) else str(n))
        for name, n in flat.items()
        if name != "foresight"
    ]
    return "experts from disk\n" + table(rows)


def resize_text(done: Mapping[str, Any]) -> str:
    before, after = done["before"], done["after"]
    rows = [("", "before", "after")]
    for label, key in (*COUNTS, ("expert bytes", "expert_bytes"), ("in all", "device_bytes")):
        show = size if key.endswith("bytes") else str
        rows.append((label, show(before[key]), show(after[key])))
    told = f"{done['dropped_rows']} rows dropped, {done['preempted']} sequences wait again, "
    return table(rows) + f"\n{told}pause {1e3 * done['pause_s']:.1f} ms\n"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first left, the others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())
    return "\n".join(lines)


def _load(told: Mapping[str, Any]) -> str:
    engine = told["engine"]
    names = ", ".join(told["server"]["models"])
    state = "" if engine["alive"] else "; THE ENGINE HAS STOPPED"
    return (
        f"{names}: {engine['running']} running, {engine['waiting']} waiting, "
        f"{engine['generated_tokens']} tokens generated, {engine['preemptions']} preemptions{state}"
    )


def _plan(plan: Mapping[str, Mapping[str, Any]]) -> str:
    width = max(len(str(choice["value"])) for choice in plan.values())
    lines = [f"{n:<14} {c['value']!s:>{width}}  {c['reason']}" for n, c in plan.items()]
    return "\n".join(lines)


def _budget(live: Mapping[str, Any]) -> str:
    budget, limits = live["budget"], live["limits"]
    rows: list[tuple[str, ...]] = [("memory", "now", "least", "most")]
    for label, key in COUNTS:
        rows.append((label, str(budget[key]), *(str(bound) for bound in limits[key])))
    rows.append(("expert bytes", size(budget["expert_bytes"]), "", ""))
    rows.append(("in all", size(budget["device_bytes"]), "", ""))
    return table(rows)


def _experts(experts: Mapping[str, Any]) -> str:
    parts = [f"experts, over {experts['decode_steps']} decode steps"]
    for kind, told in experts["kinds"].items():
        parts.append(f"{kind}\n{_uses(told)}\n{_branches(told)}\n{_quota(told['q'])}")
    return "\n\n".join(parts)


def _uses(told: Mapping[str, Any]) -> str:
    uses = told["uses"]
    shares = [f"{told[n]} {n} ({told[n] / uses:.1%})" for n in ("hits", "fills", "host") if uses]
    return f"  {uses} uses: " + ", ".join(shares) if uses else "  not used yet"


def _branches(told: Mapping[str, Any]) -> str:
    rates = told["rates"]
    rows = [("  ", "alone", "shared", "fixed", "predicted", "observed", "error")]
    for branch, fixed in (("link", "fill_s"), ("host", "handoff_s")):
        timing = told["branches"][branch]
        seen = bool(timing["layers"])
        rows.append(
            (
                f"  {branch}",
                f"{rates[branch] / 1e9:.2f} GB/s",
                f"{rates[branch + '_shared'] / 1e9:.2f} GB/s",
                f"{1e6 * rates[fixed]:.0f} us",
                f"{1e6 * timing['predicted_s']:.0f} us" if seen else "-",
                f"{1e6 * timing['observed_s']:.0f} us" if seen else "-",
                f"{timing['error']:.0%}" if seen else "-",
            )
        )
    return table(rows)


def _quota(table_q: Sequence[int]) -> str:
    shown = range(1, min(SHOWN_MISSES, len(table_q) - 1) + 1)
    return "  fills: " + ", ".join(f"{table_q[m]} of {m}" for m in shown)
