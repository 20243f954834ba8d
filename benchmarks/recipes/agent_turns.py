"""Time to the first token of agents' turns on a hybrid recurrent model, with states saved within
prompts and with those behind prompts and answers alone: both engines in one run, turn by turn.

    python benchmarks/recipes/agent_turns.py --out benchmarks/results/agent-turns.json

The checkpoint is random, of the Qwen3.5-MoE family, made with transformers; a grammar makes it say
what the session wants. Sessions keep the proportions of real ones: a long system prompt, short
turns. The first prompt of a session, cold for both, is not counted.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import headrace
from headrace import _native
from headrace.bench.report import fingerprint, spread, write
from headrace.engine.engine import Engine
from headrace.engine.request import Marks, Request, Sampling
from headrace.engine.seq import common

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
HEADER, THOUGHT, CALL = [1, 2, 3], 4, 5
MARKS = Marks(before=frozenset({CALL}), after=frozenset({THOUGHT}))
SHAPES = {
    "append-only": "system messages in between, nothing ever changes",
    "carrier": "a throw-away message ends each request",
    "serialised anew": "calls come back in other words",
    "pruned results": "old tool results are emptied now and then",
    "dropped thinking": "thinking goes when the user speaks again",
    "side requests": "titles and subagents on the same system prompt, in between",
    "no boundary": "edits anywhere in the last messages",
    "long first message": "edits in a message that was there from the beginning",
}
KINDS = {"anchors": "on", "ends alone": "off"}
Words = list[int]


class Said:
    """A grammar that allows one answer."""

    def __init__(self, answer: Words) -> None:
        self._answer, self._at = answer, 0

    def mask(self) -> NDArray[np.int32]:
        words = np.zeros(VOCAB // 32, dtype=np.uint32)
        if not self.done:
            token = self._answer[self._at]
            words[token // 32] = 1 << token % 32
        return words.view(np.int32)

    def accept(self, token: int) -> None:
        assert token == self._answer[self._at]
        self._at += 1

    @property
    def done(self) -> bool:
        return self._at == len(self._answer)


@dataclass
class Ask:
    """One request: its parts, the answer it gets."""

    parts: list[Words]
    answer: Words
    prompt: Words = field(default_factory=list)
    anchors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        starts = []
        for part in self.parts:
            starts.append(len(self.prompt))
            self.prompt = [*self.prompt, *part]
        self.anchors = tuple(starts)


def session(shape: str, seed: int, args: argparse.Namespace) -> Iterator[Ask]:
    """A user's turn, then steps with tools; what comes back of it depends on the shape."""
    rng = random.Random(seed)

    def words(n: int) -> Words:
        return [rng.randrange(10, VOCAB) for _ in range(n)]

    parts = [words(args.system)]
    if shape == "long first message":
        parts.append(words(args.system))
    spoken, tools = len(parts), list[int]()
    for turn in range(args.turns):
        if turn % 3 == 0:
            if shape == "dropped thinking":
                parts[spoken:] = [_unthought(part) for part in parts[spoken:]]
            parts.append(words(args.user))
            spoken = len(parts)
        else:
            tools.append(len(parts))
            parts.append(words(rng.choice((args.user // 2, args.user, 2 * args.user))))
            if shape == "append-only":
                parts.append(words(args.user // 3))
        answer = [*words(20), THOUGHT, *words(8), CALL, *words(8)]
        carrier = [words(args.user // 3)] if shape == "carrier" else []
        yield Ask([*parts, *carrier, HEADER], answer)
        if shape == "serialised anew":
            answer = [*answer[: answer.index(CALL)], CALL, *words(7)]
        parts.append([*HEADER, *answer])
        if shape == "pruned results" and turn % 3 == 2:
            for i in tools[:-2]:
                parts[i] = parts[i][:10]
        if shape == "no boundary":
            part = parts[-rng.randrange(1, min(5, len(parts)))]
            part[rng.randrange(len(part))] = 9
        if shape == "long first message" and turn % 2:
            parts[1] = [*parts[1]]
            parts[1][rng.randrange(args.system // 2, args.system)] = 9
        if shape == "side requests" and turn % 2:
            yield Ask([words(args.user), HEADER], words(8))
            yield Ask([parts[0], words(args.user), HEADER], words(20))


def _unthought(part: Words) -> Words:
    return [*HEADER, *part[part.index(THOUGHT) + 1 :]] if THOUGHT in part else part


def checkpoint(folder: Path) -> None:
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model("qwen3_5_moe_text", **MODEL)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)


def load(folder: Path, anchors: str) -> Engine:
    keys = {"memory.anchors": anchors, "context": 32_768, "schedule.max_sequences": 2}
    return headrace.load(folder, headrace.EngineConfig.of(**keys))


def first_token(engine: Engine, ask: Ask) -> tuple[float, int]:
    """Seconds, and the prompt tokens that were computed."""
    sampling = Sampling(temperature=0, ignore_eos=True)
    request = Request(
        tuple(ask.prompt), sampling, Said(ask.answer), anchors=ask.anchors, marks=MARKS
    )
    began, first, cached = time.perf_counter(), 0.0, 0
    engine.submit(request)
    while not engine.idle:
        for event in engine.step():
            if event.error is not None:
                raise event.error
            first = first or time.perf_counter() - began
            cached = event.cached
    return first, len(ask.prompt) - cached


@dataclass
class Tally:
    """Of one engine, or of the best cache, in one session: by request behind the first."""

    seconds: list[float] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)


def play(folder: Path, shape: str, seed: int, args: argparse.Namespace) -> dict[str, Tally]:
    """One session with both engines, begun anew."""
    engines = {name: load(folder, kind) for name, kind in KINDS.items()}
    tallies = {name: Tally() for name in (*engines, "fewest")}
    past: list[Words] = []
    for number, ask in enumerate(session(shape, seed, args)):
        best = max((common(ask.prompt[:-1], old) for old in past), default=0)
        past.append([*ask.prompt, *ask.answer])
        # Turn about, so that neither always finds the warmer machine.
        for name in sorted(engines, reverse=bool(number % 2)):
            seconds, computed = first_token(engines[name], ask)
            if number:
                tallies[name].seconds.append(seconds)
                tallies[name].computed.append(computed)
        if number:
            tallies["fewest"].computed.append(len(ask.prompt) - best)
    for engine in engines.values():
        engine.close()
    return tallies


def figures(runs: list[dict[str, Tally]]) -> dict[str, Any]:
    """Medians over runs of the worst and the mean request; ratios of these medians."""
    made: dict[str, Any] = {}
    for name in KINDS:
        tallies = [run[name] for run in runs]
        made[name] = {
            "worst_s": spread([max(t.seconds) for t in tallies]),
            "mean_s": spread([statistics.fmean(t.seconds) for t in tallies]),
            "worst_tokens": max(max(t.computed) for t in tallies),
            "tokens": sum(sum(t.computed) for t in tallies),
        }
    fewest = [run["fewest"].computed for run in runs]
    made["fewest"] = {"worst_tokens": max(map(max, fewest)), "tokens": sum(map(sum, fewest))}
    for what, of in (("worst", max), ("mean", statistics.fmean)):
        ours, theirs = (
            statistics.median([of(run[name].seconds) for run in runs]) for name in KINDS
        )
        made[f"times lower, {what}"] = theirs / ours
    # No cache can do better than this: prompt tokens of the worst request, with ends alone and
    # with the most that could be kept.
    bounds = [max(run["ends alone"].computed) / max(run["fewest"].computed) for run in runs]
    made["times fewer tokens at best, worst"] = statistics.median(bounds)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--system", type=int, default=2000, help="tokens of the system prompt")
    parser.add_argument("--user", type=int, default=60, help="tokens of a user's turn")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="the result as JSON")
    args = parser.parse_args()
    result: dict[str, object] = {
        "benchmark": "agent turns",
        "machine": fingerprint(threads=0, isa=_native.isas()[-1]),
        "settings": {k: v for k, v in vars(args).items() if k != "out"},
        "model": MODEL,
    }
    shapes: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder))
        for number, shape in enumerate(SHAPES):
            seeds = range(1000 * number, 1000 * number + args.runs)
            runs = [play(Path(folder), shape, seed, args) for seed in seeds]
            made = shapes[shape] = figures(runs)
            sys.stdout.write(_line(shape, made))
            sys.stdout.flush()
    result["shapes"] = shapes
    if args.out is not None:
        write(args.out, result)


def _line(shape: str, made: dict[str, Any]) -> str:
    cells = [f"{shape:20}"]
    for name in KINDS:
        worst, mean = (made[name][what]["median"] for what in ("worst_s", "mean_s"))
        cells.append(f"{name} worst {worst:6.3f} s mean {mean:6.3f} s")
    cells.append(f"times lower {made['times lower, worst']:5.2f} {made['times lower, mean']:5.2f}")
    cells.append(f"at best {made['times fewer tokens at best, worst']:5.1f}")
    return "  ".join(cells) + "\n"


if __name__ == "__main__":
    main()
