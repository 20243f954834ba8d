"""How near made-up routing comes to the hit rates that were published of real routing.

The published setting: a cache of its own for each layer, empty at the start of each prompt. LRU
takes in a token's misses together; Belady's bound goes expert by expert and takes in every miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.planning.facts import ExpertKey
from headrace.planning.lru import Lru, SlotTable
from headrace.planning.split import fill_all, plan_misses
from headrace.planning.trace import RoutingTrace, TraceModel
from headrace.sim.belady import belady_misses
from headrace.sim.synthetic import SHAPES, Recipe, generate


@dataclass(frozen=True, slots=True)
class HitRates:
    """Percent, at one number of slots per layer."""

    slots: int
    lru: float
    belady: float


# gajsanders/moe-trace, findings 004 to 017: Qwen3-30B-A3B in 4 bits, 128 experts, top-8, 25 prompts
# of five kinds, 3,225 decoded tokens.
PUBLISHED = (
    HitRates(8, 42.4, 60.8),
    HitRates(16, 64.7, 78.4),
    HitRates(32, 81.0, 88.8),
    HitRates(64, 91.8, 92.9),
)
PROMPTS, TOKENS = 25, 129


def synthetic_rates(
    recipe: Recipe, *, layers: int, prompts: int = PROMPTS, seed: int = 0
) -> list[HitRates]:
    """What `recipe` gives in the published setting, over `layers` layers of that model."""
    whole = SHAPES["qwen3-30b-a3b"]
    model = TraceModel(
        whole.family, whole.experts[:layers], whole.top_k[:layers], whole.row_bytes[:layers]
    )
    trace = generate(model, recipe=recipe, sequences=prompts, prompt=0, decode=TOKENS, seed=seed)
    return hit_rates(trace, TOKENS, [rates.slots for rates in PUBLISHED])


def hit_rates(trace: RoutingTrace, tokens: int, capacities: Sequence[int]) -> list[HitRates]:
    """Rates of caches per layer, emptied after every `tokens` tokens."""
    experts, ids = trace.model.experts, trace.ids
    lru = dict.fromkeys(capacities, 0)
    best = dict.fromkeys(capacities, 0)
    for start in range(0, trace.tokens, tokens):
        for column, layer in enumerate(trace.model.moe_layers):
            uses = ids[start : start + tokens, column].tolist()
            flat = [expert for token in uses for expert in token]
            for slots in capacities:
                lru[slots] += _lru_hits(uses, experts[layer], slots)
                best[slots] += len(flat) - belady_misses(flat, slots, bypass=False)
    scale = 100 / ids.size
    return [HitRates(slots, scale * lru[slots], scale * best[slots]) for slots in capacities]


def _lru_hits(uses: Sequence[Sequence[int]], experts: int, slots: int) -> int:
    table = SlotTable((experts,), slots, Lru())
    keys = [ExpertKey(0, expert) for expert in range(experts)]
    return sum(
        len(plan_misses([keys[expert] for expert in token], table, fill_all).hits) for token in uses
    )
