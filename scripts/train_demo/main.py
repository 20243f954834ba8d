"""Command line of `scripts/train-demo`: fetch text, let the parent chat, train, in that order."""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.demo.source import DenseParent, locate
from headrace.demo.tokenizer import write_tokenizer
from train_demo import chat, corpus
from train_demo.model import Upcycled
from train_demo.rows import Rows, chat_rows, text_rows
from train_demo.train import check, init_routers, load_deltas, save_deltas, train

ROWS, CHECK_ROWS, CHATS, INIT_ROWS = 420, 2, 160, 6


def write_dense(parent: DenseParent, folder: Path) -> None:
    """The dense parent as a folder that `transformers` loads, float32."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(parent, folder)
    tensors = {n: torch.from_numpy(parent.tensor(n).copy()) for n in parent.names}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    d = parent.dims
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": d.hidden,
        "intermediate_size": d.width,
        "num_hidden_layers": d.layers,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads,
        "max_position_embeddings": d.context,
        "rope_theta": d.rope_theta,
        "rms_norm_eps": d.rms_eps,
        "vocab_size": len(parent.meta("tokenizer.ggml.tokens")),
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def prepare(root: Path, seed: int) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """Training rows and check rows by domain; held-out documents are not touched."""
    cached = root / "rows.pt"
    tokenizer = AutoTokenizer.from_pretrained(root / "dense")
    if not cached.exists():
        found = {
            name: text_rows(kept, tokenizer, ROWS, seed)
            for name, (kept, _) in corpus.documents(root).items()
        }
        torch.save({n: r.ids.to(torch.int32) for n, r in found.items()}, cached)
    parts = {n: ids.long() for n, ids in torch.load(cached).items()}
    rows = {n: Rows(ids, torch.ones_like(ids, dtype=torch.bool)) for n, ids in parts.items()}
    if not (root / "chats.json").exists():
        model = AutoModelForCausalLM.from_pretrained(root / "dense", dtype=torch.float32)
        chat.generate(model.eval(), tokenizer, CHATS, root / "chats.json", seed)
    rows["chat"] = chat_rows(chat.training(root / "chats.json", seed), tokenizer, pad=2)
    checks = {n: Rows(r.ids[:CHECK_ROWS], r.learned[:CHECK_ROWS]) for n, r in rows.items()}
    rest = {n: Rows(r.ids[CHECK_ROWS:], r.learned[CHECK_ROWS:]) for n, r in rows.items()}
    rest["core"] = chat_rows(chat.house()[: chat.CORE], tokenizer, pad=2)
    return rest, checks


def main() -> None:
    """See `scripts/train-demo --help`."""
    parser = argparse.ArgumentParser(prog="train-demo", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/train-demo"), help="folder")
    parser.add_argument("--steps", type=int, default=150, help="steps of 512 tokens")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    root = options.work
    corpus.fetch(root)
    parent = DenseParent(locate())
    if not (root / "dense" / "config.json").exists():
        write_dense(parent, root / "dense")
    rows, checks = prepare(root, options.seed)
    print({name: len(part) for name, part in rows.items()}, flush=True)
    model = Upcycled(parent, options.rank)
    start = root / "routers.safetensors"
    if not start.exists():
        domains = {n: r for n, r in rows.items() if n != "core"}
        init_routers(model, domains, INIT_ROWS, options.seed)
        values = dict(model.deltas.named_parameters())
        save_deltas({n: v.detach() for n, v in values.items()}, start, {"rank": str(model.rank)})
    load_deltas(model, start)
    if not (root / "state.pt").exists():  # all deltas are zero: this is the parent
        print("step 0 check", check(model, checks), flush=True)
    train(model, rows, checks, root, steps=options.steps, seed=options.seed)


if __name__ == "__main__":
    main()
