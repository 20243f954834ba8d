"""Time to the first token of agents' turns on a hybrid recurrent model, with states saved within
prompts and with those behind prompts and answers alone: both engines in one run, turn by turn.

Prints one JSON object. The checkpoint is random, of the Qwen3.5-MoE family, made with transformers.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

import headrace
from headrace import _native
from headrace.bench.report import fingerprint, spread
from headrace.engine.engine import Engine
from headrace.engine.request import Marks, Request, Sampling

VOCAB = 4096
MODEL = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "max_position_embeddings": 65_536,
}
HEADER = [1, 2, 3]
SHAPES = ("append-only", "carrier", "dropped thinking", "pruned results")


def checkpoint(folder: Path) -> None:
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model("qwen3_5_moe_text", **MODEL)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)


def load(folder: Path, anchors: str) -> Engine:
    keys = {"memory.anchors": anchors, "context": 32_768, "schedule.max_sequences": 2}
    return headrace.load(folder, headrace.EngineConfig.of(**keys))


def first_token(engine: Engine, parts: list[list[int]], answer: int) -> tuple[float, list[int]]:
    """Seconds, and the answer."""
    tokens, anchors = [], []
    for part in parts:
        anchors.append(len(tokens))
        tokens += part
    sampling = Sampling(temperature=0, max_tokens=answer, ignore_eos=True)
    began, first, said = time.perf_counter(), 0.0, list[int]()
    engine.submit(Request(tuple(tokens), sampling, anchors=tuple(anchors), marks=Marks()))
    while not engine.idle:
        for event in engine.step():
            if event.error is not None:
                raise event.error
            first = first or time.perf_counter() - began
            if event.token is not None:
                said.append(event.token)
    return first, said


def play(engine: Engine, shape: str, seed: int, args: argparse.Namespace) -> list[float]:
    """Time to the first token of each turn."""
    rng = random.Random(seed)

    def words(n: int) -> list[int]:
        return [rng.randrange(10, VOCAB) for _ in range(n)]

    parts, seconds = [words(args.system)], []
    for turn in range(args.turns):
        parts.append(words(args.user))
        carrier = [words(20)] if shape == "carrier" else []
        first, said = first_token(engine, [*parts, *carrier, HEADER], 24)
        seconds.append(first)
        parts.append([*HEADER, *(said[12:] if shape == "dropped thinking" else said)])
        if shape == "pruned results" and turn % 4 == 3:
            parts[-6] = parts[-6][:20]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", type=int, default=3000, help="tokens of the system prompt")
    parser.add_argument("--user", type=int, default=120, help="tokens of a user's turn")
    parser.add_argument("--turns", type=int, default=13)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    result: dict[str, object] = {
        "benchmark": "agent turns",
        "machine": fingerprint(threads=0, isa=_native.isas()[-1]),
        "settings": vars(args),
        "model": MODEL,
    }
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder))
        engines = {"anchors": load(Path(folder), "on"), "ends alone": load(Path(folder), "off")}
        for number, shape in enumerate(SHAPES):
            worst: dict[str, list[float]] = {name: [] for name in engines}
            later: dict[str, list[float]] = {name: [] for name in engines}
            for run in range(args.runs):
                for name, engine in engines.items():
                    # The tokens of a run are new to both.
                    seconds = play(engine, shape, 1000 * number + run, args)
                    worst[name].append(max(seconds[1:]))
                    later[name].append(statistics.median(seconds[1:]))
            result[shape] = {
                name: {"worst_s": spread(worst[name]), "median_s": spread(later[name])}
                for name in engines
            } | {
                "times lower in the worst turn": statistics.median(worst["ends alone"])
                / statistics.median(worst["anchors"])
            }
        for engine in engines.values():
            engine.close()
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
