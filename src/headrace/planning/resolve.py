"""Config + machine + model -> ExecutionPlan, in which every value carries its reason. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.config import EngineConfig
from headrace.errors import CapacityError, ConfigError
from headrace.planning.budget import (
    CacheNeed,
    DeviceNeed,
    MemoryBudget,
    device_memory,
    estimate_workspace,
    plan_memory,
    useful_blocks,
    with_experts,
)
from headrace.planning.cost import Costs, OnDisk, Seating, Speeds
from headrace.planning.counts import (
    MOST_DEVICE_STATES,
    context_choice,
    kv_blocks_choice,
    saved_states,
    sequences_choice,
    state_slots_choice,
    step_tokens_choice,
)
from headrace.planning.emulation import CORE_FLOPS, device_mark, emulate, guessed_host
from headrace.planning.facts import ModelFacts
from headrace.planning.machine import Machine
from headrace.planning.overflow import NO_OVERFLOW, Overflow, overflow_for
from headrace.planning.placement import (
    Choice,
    ExpertsPlan,
    decide_split,
    plan_experts,
    rates_of,
    seat,
    seat_over_disk,
    slots_choice,
)
from headrace.planning.profile import NOT_MEASURED, Found, fingerprint
from headrace.planning.tier import DISK_RATE, TierPlan, plan_behind, plan_tier
from headrace.planning.worth import chunk_tokens, worthwhile

__all__ = ["Choice", "ExecutionPlan", "ExpertsPlan", "resolve"]

MOST_STEP_TOKENS = 8192  # where prompts stream the experts
WORKSPACE_SHARE = 16  # of device memory, at most one part in so many for longer steps


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """All that the engine does is in here; nothing of it changes while it runs."""

    device: Choice[str]
    dtype: Choice[str]  # float32: exact matrix products and float32 KV; bfloat16: both may round
    threads: Choice[int]
    context: Choice[int]
    sequences: Choice[int]
    state_slots: Choice[int]
    kv_blocks: Choice[int]
    step_tokens: Choice[int]
    max_queued: int
    memory: MemoryBudget  # of RAM on the CPU, else of the device
    need: CacheNeed  # what the caches were asked to hold
    experts: ExpertsPlan | None = None  # None on the CPU: they are computed where they lie
    overflow: Overflow = NO_OVERFLOW
    tier: TierPlan | None = None  # None: every expert is in memory

    @property
    def exact(self) -> bool:
        """Activations are never rounded below float32."""
        return self.dtype.value == "float32"

    def choices(self) -> dict[str, Choice[str] | Choice[int]]:
        return {
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
            "context": self.context,
            "sequences": self.sequences,
            "state slots": self.state_slots,
            "kv blocks": self.kv_blocks,
            "step tokens": self.step_tokens,
            "host tier": Choice(self.overflow.blocks, self.overflow.reason),
            **(self.tier.choices() if self.tier is not None else {}),
            # Of a device over RAM over disk, placement and policy are the device's.
            **(self.experts.choices() if self.experts is not None else {}),
        }

    def lines(self) -> list[str]:
        """For the start-up log: a line per choice, with its reason."""
        choices = self.choices()
        width = max(9, *(len(str(choice.value)) for choice in choices.values()))
        return [f"{name:<14} {c.value!s:>{width}}  {c.reason}" for name, c in choices.items()]


def resolve(
    config: EngineConfig, machine: Machine, facts: ModelFacts, found: Found = NOT_MEASURED
) -> ExecutionPlan:
    """Raises ConfigError (asked for what the model or this build has not) or CapacityError.

    `machine.ram_free` is what was free before the weights were read. `found`: measured bandwidths,
    if any; the CPU alone needs none.
    """
    device = resolve_device(config, facts)
    return plan_for(config, equip(config, machine, facts, device), facts, device, found)


def equip(
    config: EngineConfig, machine: Machine, facts: ModelFacts, device: Choice[str]
) -> Machine:
    """`machine` with what `device` adds to it."""
    return emulate(config, machine, facts) if device.value == "emulated" else machine


def plan_for(
    config: EngineConfig,
    machine: Machine,
    facts: ModelFacts,
    device: Choice[str],
    found: Found = NOT_MEASURED,
) -> ExecutionPlan:
    """As `resolve`, for a device that is settled; unless it is the CPU, `machine` has it."""
    dtype = resolve_dtype(config, facts)
    if config.context is not None and config.context > facts.max_context:
        raise ConfigError(
            f"context = {config.context}",
            expected=f"at most {facts.max_context}, which is the model's own",
        )
    contexts = [config.context or facts.max_context]
    if config.context is None:
        contexts += sorted((n for n in facts.window_elements() if n < contexts[0]), reverse=True)
    best, fault = None, None
    # A window of more than memory holds only wastes it: each sequence has blocks for all of it. So
    # a shorter context is tried, in which it is none.
    for context in contexts:
        if best is not None and best.memory.kv_tokens >= context:
            break
        try:
            plan = _plan_within(config, machine, facts, device, dtype, found, context=context)
        except CapacityError as error:
            fault = fault or error
            continue
        if best is None or plan.context.value >= best.context.value:
            best = plan
    if best is None:
        assert fault is not None
        raise fault
    return best


def _plan_within(
    config: EngineConfig,
    machine: Machine,
    facts: ModelFacts,
    device: Choice[str],
    dtype: Choice[str],
    found: Found,
    *,
    context: int,
) -> ExecutionPlan:
    """For sequences of at most `context` tokens."""
    own = facts.max_context
    facts = facts.within(context)
    need = CacheNeed(
        context=context,
        sequences=config.schedule.max_sequences,
        block_tokens=config.memory.block_tokens,
        element_bytes=kv_element_bytes(dtype.value),
        kv_bytes=config.memory.kv_bytes,
        states=saved_states(config, facts, context, on_cpu=device.value == "cpu"),
        asked=config.context is not None,
    )
    experts, tier, step_tokens, overflow = None, None, step_tokens_choice(config), NO_OVERFLOW
    if device.value == "cpu":
        tier, memory = _in_ram(config, machine, facts, need)
    else:
        experts, tier, memory, step_tokens = _on_device(config, machine, facts, found, need)
        overflow = overflow_for(config, machine, facts, need)
        memory = replace(memory, host_blocks=overflow.blocks, host_states=overflow.states)
    return ExecutionPlan(
        device=device,
        dtype=dtype,
        threads=resolve_threads(config, machine),
        context=context_choice(config, own, need, memory),
        sequences=sequences_choice(config, memory),
        state_slots=state_slots_choice(facts, memory),
        kv_blocks=kv_blocks_choice(config, memory, dtype.value),
        step_tokens=step_tokens,
        max_queued=config.schedule.max_queued,
        memory=memory,
        need=need,
        experts=experts,
        overflow=overflow,
        tier=tier,
    )


def _in_ram(
    config: EngineConfig, machine: Machine, facts: ModelFacts, cache: CacheNeed
) -> tuple[TierPlan | None, MemoryBudget]:
    """The CPU's memory, and which experts are in it where not all are."""
    total, free = machine.ram_total, machine.ram_free
    need = DeviceNeed(cache, step_tokens_choice(config).value)
    if config.experts.ram is not None and facts.rows:
        return plan_tier(config, machine, facts, need)
    try:
        return None, plan_memory(facts, ram_total=total, ram_free=free, need=cache)
    except CapacityError:
        if not facts.rows:
            raise
    return plan_tier(config, machine, facts, need)


def kv_element_bytes(dtype: str) -> int:
    """Of keys and values in a plan of this dtype."""
    return 4 if dtype == "float32" else 2


def _on_device(
    config: EngineConfig, machine: Machine, facts: ModelFacts, found: Found, cache: CacheNeed
) -> tuple[ExpertsPlan, TierPlan | None, MemoryBudget, Choice[int]]:
    """The experts, those in RAM where it does not hold them all, the device's memory and the tokens
    of a step.
    """
    tier = plan_behind(config, machine, facts, device_bytes=_device_free(config, machine))
    rates = rates_of(config, machine, facts, found)
    split = decide_split(config, rates, facts)
    steps = step_tokens_choice(config)
    need = DeviceNeed(cache, steps.value)
    budget = device_memory(facts, _device_free(config, machine), need)
    seats = (seat if tier is None else seat_over_disk)(config, facts, budget, split)
    plan = plan_experts(config, machine, facts, rates, split, seats)
    costs = costs_of(plan, machine, facts, cache.element_bytes)
    if config.schedule.step_tokens is None and plan.prefill.value == "by chunk":
        longer, chunk = _longer_steps(costs, need, budget)
        seats = seat(config, facts, longer, split)
        if seats.prefill.value == "by chunk" and chunk > steps.value:
            plan = plan_experts(config, machine, facts, rates, split, seats)
            why = "a chunk streams the experts whatever its length: so many make it worth it"
            budget, steps = longer, Choice(chunk, why)
    blocks = useful_blocks(cache) if cache.kv_bytes is None else 0
    if plan.placement.value == "hybrid" and config.experts.cache is None and blocks:
        costs = costs_of(plan, machine, facts, cache.element_bytes)
        served = replace(need, step_tokens=steps.value)
        plan, budget = _worthwhile(plan, costs, budget, served, blocks)
    memory = with_experts(budget, plan.slots.value, plan.staging.value, kv_blocks=blocks)
    return plan, tier, memory, steps


def _device_free(config: EngineConfig, machine: Machine) -> int:
    assert machine.device is not None
    free, asked = machine.device.memory_free, config.memory.device_bytes
    return free if asked is None else min(free, asked)


def _longer_steps(costs: Costs, need: DeviceNeed, budget: MemoryBudget) -> tuple[MemoryBudget, int]:
    """The budget with the step length that pays, as long as its workspace stays small."""
    most = min(MOST_STEP_TOKENS, costs.facts.max_context)
    chunk = chunk_tokens(costs, need.step_tokens, most)
    while chunk > need.step_tokens:
        longer = replace(need, step_tokens=chunk)
        if estimate_workspace(costs.facts, longer) <= budget.free // WORKSPACE_SHARE:
            return device_memory(costs.facts, budget.free, longer), chunk
        chunk //= 2
    return budget, need.step_tokens


def _worthwhile(
    plan: ExpertsPlan, costs: Costs, budget: MemoryBudget, need: DeviceNeed, blocks: int
) -> tuple[ExpertsPlan, MemoryBudget]:
    """Slots that would save less than keys and values or saved states do are given to those."""
    facts = costs.facts
    saving = need.cache.states > 0 and budget.kv_bytes > 0  # states alone stay as they are
    least = _states_of(budget, min(need.cache.sequences, budget.state_slots))
    empty = with_experts(least if saving else budget, 0, plan.staging.value, kv_blocks=0)
    most = min(facts.rows, (empty.free - empty.used) // empty.slot_bytes)
    shares = worthwhile(
        costs,
        empty,
        least=min(most, max(facts.top_k)),
        most=most,
        kv_blocks=blocks,
        states=MOST_DEVICE_STATES if saving else budget.state_slots,
        chunk=need.step_tokens,
    )
    budget = _states_of(budget, shares.states)
    if shares.slots == most:
        return replace(plan, slots=slots_choice(most, facts, "what fits")), budget
    others = "keys and values or saved states" if budget.state_slots else "keys and values"
    why = f"{most} fit, beyond {shares.slots} the memory saves more as {others}"
    return replace(plan, slots=slots_choice(shares.slots, facts, why)), budget


def _states_of(budget: MemoryBudget, count: int) -> MemoryBudget:
    """With so many state slots; as it is where the model has none."""
    if budget.state_slots == 0:
        return budget
    each = budget.state_bytes // budget.state_slots
    return replace(budget, state_slots=count, state_bytes=count * each)


def costs_of(
    plan: ExpertsPlan | None,
    machine: Machine,
    facts: ModelFacts,
    element_bytes: int,
    found: Found = NOT_MEASURED,
    tier: TierPlan | None = None,
) -> Costs:
    """Predictions for a plan; `machine` has a device unless the plan is the CPU's (None)."""
    host_flops = CORE_FLOPS * machine.physical_cores
    disk = None if tier is None else OnDisk(tier.rows.value, machine.disk or DISK_RATE)
    if plan is None:
        host = _host_rate(machine, found)
        return Costs(facts, Speeds(host, host_flops, host_flops), element_bytes, disk=disk)
    assert machine.device is not None
    seating = Seating(
        plan.placement.value, plan.slots.value, plan.staging.value, plan.rows, plan.quotas
    )
    speeds = Speeds(machine.device.kernels, machine.device.flops, host_flops)
    return Costs(facts, speeds, element_bytes, seating, disk=disk)


def _host_rate(machine: Machine, found: Found) -> float:
    if machine.rates is not None:
        return machine.rates.host
    rows = found.profile.rows.values() if found.profile is not None else ()
    return min((row.host for row in rows), default=guessed_host(machine))


def profile_mark(config: EngineConfig, machine: Machine, facts: ModelFacts) -> str:
    """The fingerprint that a profile of this machine, these settings and this model must have."""
    return fingerprint(machine.name, machine.physical_cores, device_mark(config.emulated), facts)


def resolve_device(config: EngineConfig, facts: ModelFacts) -> Choice[str]:
    """Raises ConfigError for a device, or a use of one, that this version or model has not."""
    wanted = config.experts.placement
    if config.device == "emulated":
        if facts.rows == 0:
            raise ConfigError(
                "device = 'emulated' for a model without experts",
                expected="a Mixture-of-Experts model",
                fix="device = cpu",
            )
        return Choice("emulated", "asked for: a GPU made of RAM")
    if config.device == "cpu":
        if wanted == "hybrid":
            raise ConfigError(
                "experts.placement = 'hybrid' and device = 'cpu'",
                expected="auto, resident or host: the CPU computes experts where they lie",
                fix="device = emulated",
            )
        return Choice("cpu", "asked for")
    if config.device == "auto":
        ignored = "" if wanted == "auto" else f"; experts.placement = {wanted} needs a device"
        return Choice("cpu", "this version computes on the CPU only" + ignored)
    raise ConfigError(
        f"device = {config.device!r}",
        expected="auto, cpu or emulated, all that this version computes on",
    )


def resolve_dtype(config: EngineConfig, facts: ModelFacts) -> Choice[str]:
    if config.dtype != "auto":
        return Choice(config.dtype, "asked for")
    if facts.dtype == "float32":
        return Choice("float32", "the checkpoint's own: exact products, float32 keys and values")
    return Choice("bfloat16", f"the checkpoint is {facts.dtype}: bfloat16 keys and values")


def resolve_threads(config: EngineConfig, machine: Machine) -> Choice[int]:
    if config.threads is not None:
        return Choice(config.threads, f"asked for; {machine.physical_cores} physical cores")
    return Choice(machine.physical_cores, f"physical cores this process may use: {machine.name}")
