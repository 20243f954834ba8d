"""Where experts are evaluated and how misses are shared out: every choice with its reason.

The ladder, best first: all resident; hybrid with streamed prefill; hybrid without; all on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from headrace.config import EngineConfig
from headrace.errors import CapacityError
from headrace.planning.budget import MemoryBudget, mib
from headrace.planning.emulation import guessed_rates, threads_of
from headrace.planning.facts import ModelFacts
from headrace.planning.machine import Machine
from headrace.planning.profile import Found, ProfileRow, layer_kind, layer_kinds
from headrace.planning.quotas import quota_table

T = TypeVar("T")

TABLE = 64  # misses that a table of q lists at least; beyond its end the last share goes on
STREAM_SHARE = 2  # staging for two layers may take one part in so many of the experts' room


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A decided value and why."""

    value: T
    reason: str


@dataclass(frozen=True, slots=True)
class ExpertsPlan:
    """The experts of a device. Slots `0..slots-1` are the cache, `staging` more lie behind them."""

    placement: Choice[str]  # resident, host, hybrid
    fill: Choice[str]  # all, none, paper, balanced, investing or a fraction
    slots: Choice[int]
    staging: Choice[int]
    prefill: Choice[str]  # by chunk (streamed or on demand), on demand, host, in place
    copies: Choice[str]  # direct, staged
    policy: Choice[str]
    rates: Choice[str]  # where q comes from: measured, declared, default
    host_threads: Choice[int]
    device_threads: Choice[int]
    slot_bytes: int
    kinds: tuple[str | None, ...]  # per layer, None where dense
    rows: Mapping[str, ProfileRow]  # by layer kind
    quotas: Mapping[str, tuple[int, ...]]  # q[m] by layer kind

    def quota(self, layer: int) -> tuple[int, ...]:
        """`q[m]` of a MoE layer: of m misses so many are filled."""
        kind = self.kinds[layer]
        assert kind is not None, f"layer {layer} is dense"
        return self.quotas[kind]

    def choices(self) -> dict[str, Choice[str] | Choice[int]]:
        return {
            "placement": self.placement,
            "fill": self.fill,
            "slots": self.slots,
            "staging": self.staging,
            "prefill": self.prefill,
            "copies": self.copies,
            "policy": self.policy,
            "rates": self.rates,
            "host threads": self.host_threads,
            "device threads": self.device_threads,
        }


@dataclass(frozen=True, slots=True)
class Rates:
    """Bandwidths by layer kind."""

    rows: Mapping[str, ProfileRow]
    origin: Choice[str]


def rates_of(config: EngineConfig, machine: Machine, facts: ModelFacts, found: Found) -> Rates:
    """Measured if that is of this machine and model; else declared; else guessed, and it says so.

    A declared machine wins over a measurement: whoever names one wants its times.
    """
    kinds = layer_kinds(facts)
    if machine.rates is not None:
        return Rates(
            dict.fromkeys(kinds, machine.rates),
            Choice("declared", f"bandwidths of {config.emulated.machine or machine.name}"),
        )
    profile = found.profile
    if profile is not None:
        rows = {kind: row for kind in kinds if (row := profile.row(kind)) is not None}
        if len(rows) == len(kinds):
            return Rates(rows, Choice("measured", found.reason))
        missing = next(kind for kind in kinds if kind not in rows)
        found = Found(None, f"a profile is ignored: it has no row {missing!r}")
    row = guessed_rates(config, machine)
    guess = f"guessed {row.link / 1e9:.1f} GB/s link, {row.host / 1e9:.1f} GB/s host"
    return Rates(dict.fromkeys(kinds, row), Choice("default", f"{guess}; {found.reason}"))


def quota_tables(
    fill: str | float, rows: Mapping[str, ProfileRow], facts: ModelFacts
) -> dict[str, tuple[int, ...]]:
    """`q[m]` by layer kind, m from 0 to all experts of its layers or to `TABLE`."""
    sizes = layer_kinds(facts)
    widest = max(facts.experts, default=0)
    most = min(widest, max(TABLE, 2 * max(facts.top_k, default=0)))
    return {kind: quota_table(fill, row, sizes[kind], most) for kind, row in rows.items()}


def fills_of(tables: Mapping[str, tuple[int, ...]]) -> str:
    """`all` or `none` where every table says so for any number of misses, else `some`."""
    pairs = [(m, q) for table in tables.values() for m, q in enumerate(table) if m]
    if all(m == q for m, q in pairs):
        return "all"
    return "none" if all(q == 0 for _, q in pairs) else "some"


@dataclass(frozen=True, slots=True)
class Split:
    """The fill rule with its tables."""

    fill: Choice[str]
    quotas: Mapping[str, tuple[int, ...]]
    fills: str  # all, none, some


def decide_split(config: EngineConfig, rates: Rates, facts: ModelFacts) -> Split:
    """The rule that was asked for, or `investing` with its two ends called by their names."""
    asked = config.experts.fill
    tables = quota_tables(asked, rates.rows, facts)
    fills = fills_of(tables)
    if asked != "auto":
        name = f"{asked:g}" if isinstance(asked, float) else asked
        return Split(Choice(name, f"asked for: {_ends(fills, tables)}"), tables, fills)
    row = next(iter(rates.rows.values()))
    speeds = f"link {row.link / 1e9:.1f}, host {row.host / 1e9:.1f} GB/s ({rates.origin.value})"
    if fills == "all":
        return Split(Choice("all", f"{speeds}: a fill always pays"), tables, fills)
    if fills == "none":
        return Split(Choice("none", f"{speeds}: the link never pays"), tables, fills)
    return Split(Choice("investing", f"{speeds}: {_ends(fills, tables)}"), tables, fills)


def _ends(fills: str, tables: Mapping[str, tuple[int, ...]]) -> str:
    if fills != "some":
        return f"{fills} of the misses are filled"
    table = next(iter(tables.values()))
    shown = [m for m in (1, 2, 4, 8) if m < len(table)]
    return "q* = " + ", ".join(f"{table[m]} of {m}" for m in shown)


@dataclass(frozen=True, slots=True)
class Seats:
    """Who sits where: placement, cache and staging, before they are charged to the budget."""

    placement: Choice[str]
    slots: Choice[int]
    staging: Choice[int]
    prefill: Choice[str]


def seat(config: EngineConfig, facts: ModelFacts, budget: MemoryBudget, split: Split) -> Seats:
    """Raises CapacityError where what was asked for does not fit."""
    asked = config.experts.placement
    size = config.experts.cache
    left = budget.free - budget.used
    fits = left // budget.slot_bytes
    if asked == "resident" or (asked == "auto" and size is None and fits >= facts.rows):
        return _resident(facts, fits, left, asked == "resident")
    if asked == "host":
        return _host(facts, fits, "asked for")
    if asked == "auto" and size is None and split.fills == "none":
        return _host(facts, fits, f"nothing is ever filled: {split.fill.reason}")
    least = max(facts.top_k)
    if size is None and fits < least:
        said = f"{mib(left)} of device memory hold {fits} slots, and a layer uses {least} experts"
        if asked == "auto":
            return _host(facts, fits, said)
        raise CapacityError(said, expected=f"at least {least} slots", fix="lower the context")
    reason = "asked for" if asked == "hybrid" else f"{fits} of {facts.rows} experts fit the device"
    return _hybrid(config, facts, fits, reason)


def seat_over_disk(
    config: EngineConfig, facts: ModelFacts, budget: MemoryBudget, split: Split
) -> Seats:
    """As `seat`; where rows lie on disk the device is a cache whatever it holds, and no prompt
    streams.
    """
    found = seat(config, facts, budget, split)
    if found.placement.value == "resident":
        if config.experts.placement == "resident":
            raise CapacityError(
                "experts.placement = resident, but RAM does not hold all experts",
                expected="room for all of them: they come from there",
                fix="experts.placement = auto or hybrid",
            )
        found = replace(found, placement=Choice("hybrid", "experts come from disk"))
    if found.staging.value == 0:
        return found
    return replace(found, prefill=Choice("on demand", "rows come from disk as they are wanted"))


def _resident(facts: ModelFacts, fits: int, left: int, asked: bool) -> Seats:
    if fits < facts.rows:
        raise CapacityError(
            f"experts.placement = resident: {facts.rows} experts of {mib(facts.slot_bytes)} and "
            f"{mib(left)} of device memory are left to them",
            expected=f"room for all; {fits} fit",
            fix="experts.placement = hybrid or auto",
        )
    why = "asked for" if asked else "all experts fit the device"
    return Seats(
        Choice("resident", why),
        Choice(facts.rows, f"every expert, {mib(facts.rows * facts.slot_bytes)}"),
        Choice(0, "nothing is ever copied"),
        Choice("in place", "every expert is on the device"),
    )


def _host(facts: ModelFacts, fits: int, why: str) -> Seats:
    staging, prefill = _staging(facts, fits)
    return Seats(Choice("host", why), Choice(0, "nothing is kept on the device"), staging, prefill)


def _hybrid(config: EngineConfig, facts: ModelFacts, fits: int, why: str) -> Seats:
    size = config.experts.cache
    if size is None:
        staging, prefill = _staging(facts, fits)
        slots = min(facts.rows, fits - staging.value)
        return Seats(
            Choice("hybrid", why), slots_choice(slots, facts, "what fits"), staging, prefill
        )
    slots = min(facts.rows, size.slots(facts.slot_bytes, facts.rows))
    if not 1 <= slots <= fits:
        raise CapacityError(
            f"experts.cache = {size}, which is {slots} slots of {mib(facts.slot_bytes)}",
            expected=f"1 to {fits} slots, {mib(fits * facts.slot_bytes)}",
            fix="raise it" if slots < 1 else "lower it, the context or memory.kv_bytes",
        )
    staging, prefill = _staging(facts, fits - slots, whole=True)
    return Seats(
        Choice("hybrid", why),
        slots_choice(slots, facts, f"experts.cache = {size}"),
        staging,
        prefill,
    )


def slots_choice(slots: int, facts: ModelFacts, why: str) -> Choice[int]:
    """So many, and how much of the model that is."""
    share = f"{100 * slots / facts.rows:.0f}% of {facts.rows} experts"
    return Choice(slots, f"{share}, {mib(slots * facts.slot_bytes)}: {why}")


def _staging(
    facts: ModelFacts, fits: int, *, whole: bool = False
) -> tuple[Choice[int], Choice[str]]:
    """Two layers' worth, in half of the room at most (or in all, if the cache has its own)."""
    room = fits if whole else fits // STREAM_SHARE
    layer = max(facts.experts)
    if 2 * layer <= room:
        return (
            Choice(2 * layer, "two layers: one is copied while the other computes"),
            Choice("by chunk", "streamed or on demand, whichever is predicted to be sooner"),
        )
    # A chunk on demand fills up to so many misses; more would only take them from the cache.
    some = min(layer, room // STREAM_SHARE)
    no_room = f"{2 * layer} slots for two layers do not fit"
    if some < 1:
        return Choice(0, no_room), Choice("host", f"{no_room}: misses of a prompt stay on the host")
    return (
        Choice(some, f"{no_room}: for misses of a prompt"),
        Choice("on demand", f"{no_room}: only routed experts are copied"),
    )


def plan_experts(
    config: EngineConfig,
    machine: Machine,
    facts: ModelFacts,
    rates: Rates,
    split: Split,
    seats: Seats,
) -> ExpertsPlan:
    """Puts the parts together. `machine` has a device."""
    assert machine.device is not None
    fill = split.fill
    if seats.placement.value != "hybrid":
        fill = Choice("none", f"placement is {seats.placement.value}")
    pinning = machine.device.pinning
    host, device = _threads(config, machine)
    return ExpertsPlan(
        placement=seats.placement,
        fill=fill,
        slots=seats.slots,
        staging=seats.staging,
        prefill=seats.prefill,
        copies=Choice("direct", "host memory is pinned")
        if pinning
        else Choice("staged", "host memory cannot be pinned: rows go through a pinned buffer"),
        policy=_policy(config),
        rates=rates.origin,
        host_threads=host,
        device_threads=device,
        slot_bytes=facts.slot_bytes,
        kinds=tuple(layer_kind(facts, layer) for layer in range(facts.layers)),
        rows=rates.rows,
        quotas=split.quotas
        if seats.placement.value == "hybrid"
        else dict.fromkeys(rates.rows, (0, 0)),
    )


def _policy(config: EngineConfig) -> Choice[str]:
    if config.experts.policy != "auto":
        return Choice(config.experts.policy, "asked for")
    return Choice("recency-frequency", "misses least in simulation")


def _threads(config: EngineConfig, machine: Machine) -> tuple[Choice[int], Choice[int]]:
    """(host, device): an emulated device takes cores, a real one has its own."""
    cores = machine.physical_cores
    if config.device != "emulated":
        asked = config.threads
        return (
            Choice(asked or cores, "asked for" if asked else f"{cores} physical cores"),
            Choice(0, "the device computes by itself"),
        )
    host, device = threads_of(config.emulated, machine)
    shared = f"half of {cores} physical cores"
    return (
        Choice(host, "asked for" if config.emulated.host_threads is not None else shared),
        Choice(device, "asked for" if config.emulated.device_threads is not None else shared),
    )
