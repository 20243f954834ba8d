"""The result of `bench hetero` for people."""

from __future__ import annotations

from typing import Any


def text(result: dict[str, Any]) -> str:
    """A table per link: each split as observed and predicted, then what each rule chose."""
    lines = [
        f"{result['misses']} misses of {result['row_bytes'] / 1e6:.1f} MB, "
        f"{result['layers']} layers, {result['steps']} steps of every split"
    ]
    for link in result["links"]:
        row = link["row"]
        lines += [
            "",
            f"link at {link['link_share']:.0%} of the host: {_gb(row['link'])} alone, "
            f"{_gb(row['link_shared'])} shared; host {_gb(row['host'])} alone, "
            f"{_gb(row['host_shared'])} shared",
            "  fetched   observed ms   predicted ms",
        ]
        for point, predicted in zip(link["points"], link["predicted"], strict=True):
            lines.append(
                f"  {point['fills']:>7}   {1e3 * point['wall_s']:>11.2f}   {1e3 * predicted:>12.2f}"
            )
        for name, rule in link["rules"].items():
            lines.append(f"  {name:<10} fetches {rule['q']}: {_percent(rule['over_best'])}")
        lines.append(
            f"  branch times are predicted to {100 * link['error']:.0f}% (median), "
            f"to {100 * link['error_of_subtraction']:.0f}% where bandwidths are subtracted"
        )
    planning, resizing = result["planning"], result["resizing"]
    lines += [
        "",
        f"planning a layer of 64 active experts: {planning['us_with_1_miss']:.0f} us with 1 miss, "
        f"{planning['us_with_64']:.0f} us with 64",
        f"resizing a full cache of {resizing['mb']:.0f} MB: halved in {resizing['halved_ms']:.0f} "
        f"ms, doubled in {resizing['doubled_ms']:.0f} ms",
        *_live(result),
    ]
    return "\n".join(lines) + "\n"


def _live(result: dict[str, Any]) -> list[str]:
    """Throttling and overlap."""
    misses = result["throttling"]["misses"]
    lines = [
        f"link at {part['link_share']:.0%} of the host: fetches {part['fills']} of {misses}, "
        f"settled after {part['steps']} steps"
        for part in result["throttling"]["parts"]
    ]
    return lines + [
        f"a streamed chunk: copies {1e3 * one['copies_s']:.0f} ms, computing "
        f"{1e3 * one['computing_s']:.0f} ms, both {1e3 * one['both_s']:.0f} ms: "
        f"{one['over_the_larger']:.2f} times the larger"
        for one in result["overlap"]
    ]


def _gb(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"


def _percent(over: float) -> str:
    return "the best split" if over == 0 else f"{100 * over:.1f}% over the best split"
