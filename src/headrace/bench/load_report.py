"""What `headrace bench load` shows: a table, and a chart of the time to the first token by turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.charts import Line, line_chart

_HEAD = ("turns", "errors", "mean", "median", "worst", "tok/s", "prompt", "cached", "120s", "300s")
MOST_LINES = 8


def text(result: Mapping[str, Any]) -> str:
    """A row per kind of session. Times to the first token in seconds; the last two columns count
    turns that a client with that limit would have given up."""
    rows = [("", *_HEAD)]
    named = dict(result["kinds"])
    if len(named) > 1:
        named["all"] = result["all"]
    rows += [(name, *_cells(figures)) for name, figures in named.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    wrong = [f"{name}: {s['error']}" for name, s in result["sessions"].items() if s["error"]]
    return "\n".join([*lines, f"in {result['wall_s']:.1f} s", *wrong]) + "\n"


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    first = figures["first_token_s"]
    share = figures["cached_tokens"] / max(1, figures["prompt_tokens"])
    return (
        str(figures["turns"]),
        str(figures["errors"]),
        *(_number(first[name]) for name in ("mean", "median", "worst")),
        _number(figures["decode_per_s"]),
        str(figures["prompt_tokens"]),
        f"{share:.1%}",
        str(figures["over_120_s"]),
        str(figures["over_300_s"]),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def chart(result: Mapping[str, Any]) -> str | None:
    """SVG; None where no turn was answered."""
    lines = []
    for name, session in result["sessions"].items():
        firsts = [turn["first_token_s"] for turn in session["turns"]]
        points = [(float(i), s) for i, s in enumerate(firsts, 1) if s is not None]
        if points:
            lines.append(Line(name, tuple(points)))
    lines.sort(key=lambda line: -max(y for _, y in line.points))
    if not lines:
        return None
    return line_chart(
        lines[:MOST_LINES],
        title="Time to the first token",
        subtitle="each turn of each session; the slowest sessions",
        x_label="turn",
        y_label="seconds",
    )
