"""What comes before torch: look at a checkpoint, decide the plan, start the disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace import _native
from headrace.config import EngineConfig
from headrace.engine.seq import Limits
from headrace.models.source import ModelSource, open_model
from headrace.planning.budget import mib
from headrace.planning.facts import ModelFacts
from headrace.planning.machine import Machine
from headrace.planning.profile import NOT_MEASURED, Found, find_profile, profile_path
from headrace.planning.resolve import ExecutionPlan, equip, profile_mark, resolve
from headrace.planning.windows import windows_of
from headrace.weights.checkpoint import read_json
from headrace.weights.loader import Reading

log = logging.getLogger(__name__)

MAX_JSON_BYTES = 1 << 20
UNEVEN_SHARE = 16  # slots for experts that arrive may waste one part in so many


@dataclass(frozen=True, slots=True)
class Opening:
    """A model being read. Either an engine takes it over, or `reading.cancel()` ends it."""

    source: ModelSource
    config: EngineConfig
    machine: Machine  # with its device, where there is one
    plan: ExecutionPlan
    limits: Limits
    reading: Reading
    rows: bool = True  # routed experts are among what is read

    @property
    def facts(self) -> ModelFacts:
        """As planned for: of the windows those that are shorter than the context."""
        return self.source.facts.within(self.plan.need.context)


def open_engine(path: Path, config: EngineConfig, *, home: Path | None = None) -> Opening:
    """Importing torch takes a second or two, in which the weights are already on their way.

    `home`: where bandwidth profiles are kept; None = none is used. Raises CheckpointError,
    ConfigError or CapacityError before a byte of weights is read.
    """
    source = open_model(path)
    machine = Machine.probe(_native.isas())
    found = NOT_MEASURED if home is None else measured(home, config, machine, source.facts)
    plan = resolve(config, machine, source.facts, found)
    if plan.experts is not None:
        machine = equip(config, machine, source.facts, plan.device)
    ends = end_ids(path, source.checkpoint.config)
    reuse = config.memory.prefix_cache == "on"
    limits = limits_of(plan, source.facts.vocab, ends, prefix_cache=reuse)
    windows = windows_of(
        source.facts.within(plan.need.context),
        block_tokens=limits.block_tokens,
        context=plan.need.context,
        step_tokens=limits.step_tokens,
    )
    limits = replace(limits, anchored=config.memory.anchors == "on", windows=windows)
    beside = config.experts.arrive == "beside" and plan.experts is None and _even(source)
    rows = plan.tier is None and not beside
    return Opening(source, config, machine, plan, limits, source.read(rows=rows), rows)


def _even(source: ModelSource) -> bool:
    """There are experts, and a slot for each is little more than what the plan has counted."""
    if not source.facts.rows:
        return False
    uneven = source.rows().uneven_bytes
    if uneven * UNEVEN_SHARE <= source.facts.experts_bytes:
        return True
    log.warning(
        "experts differ in size, a slot for each wastes %s: all are read before the first request",
        mib(uneven),
    )
    return False


def measured(home: Path, config: EngineConfig, machine: Machine, facts: ModelFacts) -> Found:
    """The bandwidths that `headrace measure` found, if they are of this machine and model."""
    return find_profile(profile_path(home, facts), profile_mark(config, machine, facts))


def limits_of(
    plan: ExecutionPlan, vocab: int, ends: frozenset[int], *, prefix_cache: bool = True
) -> Limits:
    """The part of the plan that the scheduler works by."""
    return Limits(
        vocab=vocab,
        context=plan.context.value,
        blocks=plan.kv_blocks.value,
        block_tokens=plan.memory.block_tokens,
        state_slots=plan.state_slots.value,
        step_tokens=plan.step_tokens.value,
        max_sequences=plan.sequences.value,
        max_queued=plan.max_queued,
        end_ids=frozenset(token for token in ends if 0 <= token < vocab),
        prefix_cache=prefix_cache,
        host_blocks=plan.memory.host_blocks,
        host_states=plan.memory.host_states,
    )


def end_ids(path: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """Tokens that end a turn: of config.json (also its text part) and of generation_config.json."""
    said = [config.get("eos_token_id")]
    text = config.get("text_config")
    if isinstance(text, Mapping):
        said.append(text.get("eos_token_id"))
    generation = path / "generation_config.json"
    if generation.exists():
        said.append(read_json(generation, MAX_JSON_BYTES).get("eos_token_id"))
    ids: set[int] = set()
    for value in said:
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and not isinstance(token, bool):
                ids.add(token)
    return frozenset(ids)
