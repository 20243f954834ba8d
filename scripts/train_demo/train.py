"""Training of routers and deltas: next-token loss, Adam; an average of the weights is shipped."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from train_demo.model import Upcycled
from train_demo.routers import initial_router
from train_demo.rows import Rows

BATCH = 2  # rows in a step
BALANCE = 0.005  # weight of the load-balance loss
RATE, ROUTER_RATE, WARMUP = 2e-3, 3e-4, 20
CHAT_TURNS = 2  # chat rows per row of each other domain
SAVE_EVERY, CHECK_EVERY = 10, 80
FINISH = 22  # last steps, half of whose rows are the core of our own chats


def init_routers(model: Upcycled, rows: dict[str, Rows], per_domain: int, seed: int) -> None:
    """Set every router from `per_domain` rows of each domain (forward passes only)."""
    taps: list[list[Tensor]] = [[] for _ in model.deltas]
    domains: list[Tensor] = []
    with torch.inference_mode():
        for number, part in enumerate(rows.values()):
            for i in range(min(per_domain, len(part))):
                tap: list[Tensor] = []
                ids, _ = part.batch([i])
                model(ids, tap)
                domains.append(torch.full((ids.numel(),), number))
                for store, x in zip(taps, tap, strict=True):
                    store.append(x.half())
    generator = torch.Generator().manual_seed(seed)
    label = torch.cat(domains)
    for layer, store in zip(model.deltas, taps, strict=True):
        layer.router.data.copy_(initial_router(torch.cat(store).clone(), label, generator))
        store.clear()


def schedule(rows: dict[str, Rows], seed: int) -> Iterator[tuple[str, int]]:
    """Endless (domain, row) pairs: every domain once per cycle, chat CHAT_TURNS times."""
    rng = random.Random(seed)
    waiting: dict[str, list[int]] = {name: [] for name in rows}
    while True:
        cycle = [n for n in rows for _ in range(CHAT_TURNS if n == "chat" else 1)]
        rng.shuffle(cycle)
        for name in cycle:
            if not waiting[name]:
                waiting[name] = rng.sample(range(len(rows[name])), len(rows[name]))
            yield name, waiting[name].pop()


@torch.inference_mode()
def check(model: Upcycled, rows: dict[str, Rows]) -> dict[str, float]:
    """Mean loss per domain over all given rows."""
    losses = {}
    for name, part in rows.items():
        ids, targets = part.batch(list(range(len(part))))
        hidden, _ = model(ids)
        losses[name] = model.loss(hidden.flatten(0, 1), targets.flatten()).item()
    return losses


class Average:
    """Running mean of the parameters over about the last quarter of the steps so far."""

    def __init__(self, model: Upcycled) -> None:
        self.values = {n: p.detach().clone() for n, p in model.deltas.named_parameters()}

    def add(self, model: Upcycled, step: int, least: float) -> None:
        """Count the parameters after `step` (from 1) in, with at least this part."""
        part = max(least, 1 / (step + 1), min(1.0, 4 / (step + 3)))
        for name, value in model.deltas.named_parameters():
            self.values[name].lerp_(value.detach(), part)

    def swap(self, model: Upcycled) -> None:
        """Exchange the model's parameters with the average; call twice to restore."""
        for name, value in model.deltas.named_parameters():
            kept = value.detach().clone()
            value.data.copy_(self.values[name])
            self.values[name] = kept


def save_deltas(values: dict[str, Tensor], path: Path, facts: dict[str, str]) -> None:
    """Write the package's file: each kind of parameter stacked over layers, float16."""
    kinds = sorted({name.split(".", 1)[1] for name in values})
    layers = 1 + max(int(name.split(".", 1)[0]) for name in values)
    stacked = {k: torch.stack([values[f"{i}.{k}"] for i in range(layers)]).half() for k in kinds}
    save_file(stacked, path.with_suffix(".part"), metadata=facts)
    path.with_suffix(".part").replace(path)


def finish(rows: dict[str, Rows], seed: int) -> Iterator[tuple[str, int]]:
    """Endless (domain, row) pairs: a core chat after every row of the other domains in turn."""
    rest = schedule({n: r for n, r in rows.items() if n not in ("chat", "core")}, seed + 1)
    core = schedule({"core": rows["core"]}, seed)
    while True:
        yield next(rest)
        yield next(core)


def train(
    model: Upcycled,
    rows: dict[str, Rows],
    checks: dict[str, Rows],
    out: Path,
    *,
    steps: int,
    seed: int,
) -> None:
    """Train up to `steps` steps and leave `deltas.safetensors` in `out`; resumes from state.pt."""
    routers = [p for n, p in model.deltas.named_parameters() if n.endswith("router")]
    others = [p for n, p in model.deltas.named_parameters() if not n.endswith("router")]
    groups = [{"params": routers, "lr": ROUTER_RATE}, {"params": others, "lr": RATE}]
    adam = torch.optim.Adam(groups, betas=(0.9, 0.98))
    main_rows = {n: r for n, r in rows.items() if n != "core"}
    average, order, first = Average(model), schedule(main_rows, seed), 1
    last = finish(rows, seed)
    if (out / "state.pt").exists():
        state = torch.load(out / "state.pt")
        model.deltas.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        average.values, first = state["average"], state["step"] + 1
        for done in range(1, first):
            for _ in range(BATCH):
                next(last if done > steps - FINISH else order)
    for step in range(first, steps + 1):
        began = time.time()
        for group, rate in zip(adam.param_groups, (ROUTER_RATE, RATE), strict=True):
            group["lr"] = rate * min(1.0, step / WARMUP)
        finishing = step > steps - FINISH
        picks = [next(last if finishing else order) for _ in range(BATCH)]
        parts = [rows[name].batch([i]) for name, i in picks]
        ids, targets = (torch.cat(p) for p in zip(*parts, strict=True))
        hidden, balance = model(ids)
        loss = model.loss(hidden.flatten(0, 1), targets.flatten())
        adam.zero_grad()
        (loss + BALANCE * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.deltas.parameters(), 1.0)
        adam.step()
        average.add(model, step, 0.1 if finishing else 0.0)
        names = " ".join(name for name, _ in picks)
        took = time.time() - began
        print(f"{step}: {loss.item():.3f} {balance.item():.3f} {took:.0f} s {names}", flush=True)
        if step % SAVE_EVERY == 0 or step == steps:
            facts = {"rank": str(model.rank), "steps": str(step), "seed": str(seed)}
            save_deltas(average.values, out / "deltas.safetensors", facts)
            state = {"model": model.deltas.state_dict(), "adam": adam.state_dict()}
            state |= {"average": average.values, "step": step}
            torch.save(state, out / "state.part")
            (out / "state.part").replace(out / "state.pt")
        if step % CHECK_EVERY == 0 or step == steps:
            average.swap(model)
            print(f"step {step} check", check(model, checks), flush=True)
            average.swap(model)


def load_deltas(model: Upcycled, path: Path) -> None:
    """Set routers and deltas from a file that `save_deltas` wrote."""
    for kind, stacked in load_file(path).items():
        for layer, value in zip(model.deltas, stacked.float(), strict=True):
            layer.get_parameter(kind).data.copy_(value)
