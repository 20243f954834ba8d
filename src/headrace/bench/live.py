"""Does it follow a link that is throttled, do copies hide behind computing: in real time."""

from __future__ import annotations

import statistics
from typing import Any

from headrace.bench.layers import Layers
from headrace.experts.bank import ExpertBank

STEPS = 100  # at each speed
TOKENS = 64  # of a streamed chunk


def throttling(bank: ExpertBank, link: float, misses: int) -> dict[str, Any]:
    """The link falls to a quarter and comes back. Of each part: the fills of `misses` misses that
    it settled on, and the steps until they stayed within one of that.
    """
    layers = Layers(bank, link)
    try:
        placed = layers.placed(layers.measured(), "balanced", misses)
        step = layers.captured(placed, misses)
        parts = []
        for share in (1.0, 0.25, 1.0):
            layers.device.link_rate = share * link
            chosen = []
            for _ in range(STEPS):
                step()
                chosen.append(placed.status()["kinds"][layers.kind]["q"][misses])
            parts.append({"link_share": share, **_settled(chosen)})
    finally:
        layers.close()
    return {"misses": misses, "parts": parts}


def _settled(chosen: list[int]) -> dict[str, int]:
    end = round(statistics.median(chosen[-len(chosen) // 4 :]))
    # A trial gives the other branch one expert for a step or two: the median of three hides it.
    smooth = [statistics.median(chosen[max(0, i - 1) : i + 2]) for i in range(len(chosen))]
    far = [i for i, q in enumerate(smooth) if abs(q - end) > 1]
    return {"fills": end, "steps": far[-1] + 1 if far else 0}


def overlap(bank: ExpertBank, link: float, computing: float) -> dict[str, float]:
    """A streamed chunk against its copies alone and its computing alone, which takes `computing`
    times as long as the copies should. Medians of three, in turns.
    """
    facts = bank.facts
    copied_s = bank.total_bytes / link
    visits = facts.layers * TOKENS * facts.top_k[0] * facts.expert_bytes[0]
    seconds: dict[str, list[float]] = {"both": [], "copies": []}
    busy, idle = Layers(bank, link, visits / (computing * copied_s)), Layers(bank, link, 1e15)
    try:
        row = busy.measured()
        for _ in range(3):
            seconds["both"].append(busy.streamed(row, TOKENS))
            seconds["copies"].append(idle.streamed(row, TOKENS))
    finally:
        busy.close()
        idle.close()
    both, copies = (statistics.median(seconds[name]) for name in ("both", "copies"))
    alone = max(copies, computing * copied_s)
    return {
        "both_s": both,
        "copies_s": copies,
        "computing_s": computing * copied_s,
        "over_the_larger": both / alone,
    }
