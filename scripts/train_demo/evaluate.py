"""Figures of the model card, measured by `transformers` on the built folder and on the parent.

Held-out text only: per domain ROWS windows of 256 tokens, each from another document, plus chats
and one kind of text that training never saw.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from train_demo import chat, corpus
from train_demo.rows import Rows, chat_rows, text_rows

ROWS, SEED = 6, 77


def held_out(root: Path) -> dict[str, Rows]:
    """Rows of every domain that training never saw; cached."""
    cached = root / "held-out.pt"
    if not cached.exists():
        tokenizer = AutoTokenizer.from_pretrained(root / "dense")
        texts = {name: held for name, (_, held) in corpus.documents(root).items()}
        texts["jargon"] = corpus.unseen(root)
        rows = {n: text_rows(t, tokenizer, ROWS, SEED, 1) for n, t in texts.items()}
        rows["chat"] = chat_rows(chat.held_out(root / "chats.json")[:10], tokenizer, pad=2)
        torch.save({n: (r.ids, r.learned) for n, r in rows.items()}, cached)
    return {name: Rows(*parts) for name, parts in torch.load(cached).items()}


@torch.inference_mode()
def measure(model: Any, rows: dict[str, Rows]) -> dict[str, tuple[float, int]]:
    """Domain -> (sum of losses, tokens)."""
    found = {}
    for name, part in rows.items():
        total, count = 0.0, 0
        for i in range(len(part)):
            ids, targets = part.batch([i])
            logits = model(ids).logits[0]
            keep = targets[0] >= 0
            loss = torch.nn.functional.cross_entropy(
                logits[keep].float(), targets[0][keep], reduction="sum"
            )
            total, count = total + loss.item(), count + int(keep.sum())
        found[name] = total, count
    return found


class Usage:
    """Experts chosen in each layer, [tokens, 2] a call; read through hooks on the routers."""

    def __init__(self, model: Any) -> None:
        self.chosen: list[list[Tensor]] = [[] for _ in model.model.layers]
        for store, layer in zip(self.chosen, model.model.layers, strict=True):
            layer.mlp.gate.register_forward_hook(
                lambda module, args, out, store=store: store.append(out[2].to(torch.int8))
            )

    def take(self) -> list[Tensor]:
        """Per layer [tokens, 2] since the last call."""
        taken = [torch.cat(store).long() for store in self.chosen]
        for store in self.chosen:
            store.clear()
        return taken


def shares(chosen: Tensor, experts: int = 8) -> Tensor:
    """Part of all choices that fell on each expert, [E]."""
    return torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()


def information(shares_DE: Tensor) -> float:
    """Mutual information of expert and domain in bits, domains weighted equally."""
    overall = shares_DE.mean(0)
    ratio = torch.where(shares_DE > 0, shares_DE / overall, torch.ones(()))
    return float((shares_DE * ratio.log2()).sum(1).mean())


def repeats(chosen: Tensor) -> float:
    """Part of a token's experts that the token before it also used."""
    now, before = chosen[1:, :, None], chosen[:-1, None, :]
    return float((now == before).any(-1).float().mean())


def report(
    parent: dict[str, tuple[float, int]],
    demo: dict[str, tuple[float, int]],
    chosen: dict[str, list[Tensor]],
) -> Iterator[str]:
    """Markdown tables."""
    yield "| held-out text | tokens | parent | demo |\n|---|---|---|---|"
    for name, (loss, count) in demo.items():
        before = math.exp(parent[name][0] / count)
        yield f"| {name} | {count:,} | {before:.2f} | {math.exp(loss / count):.2f} |"
    count = sum(c for _, c in demo.values())
    ends = [math.exp(sum(loss for loss, _ in m.values()) / count) for m in (parent, demo)]
    yield f"| all | {count:,} | {ends[0]:.2f} | {ends[1]:.2f} |\n"
    names = list(chosen)
    layers = len(chosen[names[0]])
    table = torch.stack([torch.stack([shares(c) for c in chosen[n]]) for n in names])  # [D, L, E]
    for layer in (layers // 8, layers // 2, layers - 1 - layers // 8):
        yield (
            f"Layer {layer}, percent of choices:\n\n| | "
            + " | ".join(f"e{e}" for e in range(8))
            + " |\n|---"
            + "|---" * 8
            + "|"
        )
        for name, row in zip(names, table[:, layer], strict=True):
            yield f"| {name} | " + " | ".join(f"{100 * x:.0f}" for x in row) + " |"
        yield ""
    bits = [information(table[:, i]) for i in range(layers)]
    yield "Bits by layer: " + " ".join(f"{b:.2f}" for b in bits)
    yield f"Mean {sum(bits) / layers:.2f} of at most {math.log2(len(names)):.2f} bits\n"
    overall = table.mean(0)
    yield f"Most used expert of a layer: {100 * overall.max(1).values.mean():.1f}% of choices; "
    yield f"least used: {100 * overall.min(1).values.mean():.1f}% (equal use is 12.5%)"
    yield f"Smallest share of any expert: {100 * overall.min():.2f}%"
    yield "In one domain the two most used experts of a layer take " + ", ".join(
        f"{n} {100 * row.topk(2).values.sum(-1).mean():.0f}%"
        for n, row in zip(names, table, strict=True)
    )
    same = [repeats(c) for parts in chosen.values() for c in parts]
    yield f"Experts shared with the token before: {100 * sum(same) / len(same):.0f}% (chance 25%)"


def main() -> None:
    """See `scripts/train-demo --help`."""
    parser = argparse.ArgumentParser(prog="train-demo-evaluate", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/train-demo"), help="folder")
    parser.add_argument("--model", type=Path, help="the built demo folder; none: only the parent")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    root = options.work
    rows = held_out(root)
    cached = root / "parent-losses.json"
    if not cached.exists():
        dense = AutoModelForCausalLM.from_pretrained(root / "dense", dtype=torch.float32)
        cached.write_text(json.dumps(measure(dense, rows)))
    parent = json.loads(cached.read_text())
    if options.model is None:
        return
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32, experts_implementation="eager"
    )
    usage, demo, chosen = Usage(model), {}, {}
    for name, part in rows.items():
        demo |= measure(model, {name: part})
        chosen[name] = usage.take()
    text = "\n".join(report(parent, demo, chosen))
    (root / "figures.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
