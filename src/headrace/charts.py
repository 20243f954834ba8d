"""Line charts as SVG text; every line is named at its end, so no legend and no colours are needed
to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 62, 172, 56, 54
LABEL_GAP = 15  # pixels between the names of lines
COLOURS = ("#0b6e4f", "#1f5fa8", "#8a5a00", "#8e3b8a", "#b3402a", "#6b7280", "#111827", "#0891b2")


@dataclass(frozen=True, slots=True)
class Line:
    """One named line. `strong`: drawn thick; `dashed`: a bound rather than a result."""

    name: str
    points: tuple[tuple[float, float], ...]
    strong: bool = False
    dashed: bool = False


def line_chart(
    lines: Sequence[Line], *, title: str, subtitle: str, x_label: str, y_label: str
) -> str:
    """SVG of lines over one x axis, both axes from 0. Every line needs a point."""
    assert lines
    assert all(line.points for line in lines)
    xs = sorted({x for line in lines for x, _ in line.points})
    x_most = _ceiling(xs[-1])
    y_most = _ceiling(max(y for line in lines for _, y in line.points))

    def x_at(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / x_most

    def y_at(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / y_most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 24, title, size=16, weight="600"),
        _text(LEFT, 42, subtitle, colour="#6b7280"),
    ]
    for y in _ticks(y_most):
        parts.append(_rule(LEFT, y_at(y), WIDTH - RIGHT, y_at(y), "#e5e7eb"))
        parts.append(_text(LEFT - 8, y_at(y) + 4, _number(y), anchor="end", colour="#4b5563"))
    parts.append(_rule(LEFT, y_at(0), WIDTH - RIGHT, y_at(0), "#4b5563"))
    for x in xs:
        parts.append(_rule(x_at(x), y_at(0), x_at(x), y_at(0) + 5, "#4b5563"))
        parts.append(_text(x_at(x), y_at(0) + 19, _number(x), anchor="middle", colour="#4b5563"))
    parts.append(
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label, anchor="middle", colour="#374151")
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="16" y="{middle:.1f}" text-anchor="middle" fill="#374151" '
        f'transform="rotate(-90 16 {middle:.1f})">{escape(y_label)}</text>'
    )
    places = _spread([y_at(line.points[-1][1]) for line in lines])
    for i, line in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        at = [(x_at(x), y_at(y)) for x, y in line.points]
        parts += _drawn(line, at, colour)
        end_x, end_y = at[-1]
        label_x = WIDTH - RIGHT + 26
        parts.append(_rule(end_x + 5, end_y, label_x - 4, places[i], colour, width=0.6))
        weight = "600" if line.strong else "400"
        parts.append(_text(label_x, places[i] + 4, line.name, colour=colour, weight=weight))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _drawn(line: Line, at: Sequence[tuple[float, float]], colour: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    width = 3 if line.strong else 1.6
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    drawn = [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'stroke-linejoin="round"{dash}/>'
    ]
    radius = 3.5 if line.strong else 2.5
    drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>' for x, y in at]
    return drawn


def _spread(wanted: Sequence[float]) -> list[float]:
    """Places for names, near where they belong and `LABEL_GAP` apart."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = list(wanted)
    for before, i in pairwise(order):
        places[i] = max(places[i], places[before] + LABEL_GAP)
    # Names that were pushed below the axis push the ones above them up again.
    limit = float(HEIGHT - BOTTOM)
    for i in reversed(order):
        places[i] = min(places[i], limit)
        limit = places[i] - LABEL_GAP
    return places


def _ceiling(most: float) -> float:
    """A round number at or above `most`."""
    if most <= 0:
        return 1.0
    unit = 1.0
    while unit * 10 <= most:
        unit *= 10
    while unit > most:
        unit /= 10
    return next(unit * k for k in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if unit * k >= most)


def _ticks(most: float) -> list[float]:
    return [most * i / 5 for i in range(6)]


def _number(value: float) -> str:
    return f"{value:.3g}"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    colour: str = "#111827",
    size: int = 12,
    weight: str = "400",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}" font-weight="{weight}">{escape(text)}</text>'
    )


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1.0) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"/>'
    )
