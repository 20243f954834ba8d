"""Decodes sampled tokens a few times with Headrace as it plans by itself; prints one JSON object:
tokens/s of each run and, where experts lie on disk, what the runs behind the first one read.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from headrace.config import EngineConfig
from headrace.device.cpu import CpuDevice
from headrace.engine.build import build, start_device
from headrace.engine.engine import Engine
from headrace.engine.opening import open_engine
from headrace.engine.request import Request, Sampling
from headrace.experts.disk import FromDisk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=4, help="tokens")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the configuration")
    given = parser.parse_args()
    keys = dict(pair.split("=", 1) for pair in given.set)
    fixed = {"memory.prefix_cache": "off", "schedule.max_sequences": 1}
    config = EngineConfig.of(threads=given.threads, context=4096, **fixed, **keys)
    opening = open_engine(given.model, config)
    device = start_device(opening)
    assert isinstance(device, CpuDevice)
    built = build(opening, device, lambda done, total: None)
    engine = Engine(opening.plan, built.runner, opening.limits, on_close=built.close, built=built)
    samples, status = [], []
    for i in range(given.runs):
        samples.append(given.tokens / _decode(engine, given.tokens, given.prompt, i))
        if isinstance(built.placement, FromDisk):
            status.append(built.placement.status())
    made = {"samples": samples, "decoding_s": sum(given.tokens / rate for rate in samples[1:])}
    if isinstance(built.placement, FromDisk) and opening.plan.tier is not None:
        way, first, last = built.placement.tier.reader.way, status[0], status[-1]
        counts = ("uses", "misses", "read_bytes", "reading_s")
        made |= {name: last[name] - first[name] for name in counts}
        made |= {
            "plan": {
                name: [choice.value, choice.reason]
                for name, choice in opening.plan.tier.choices().items()
            },
            "disk": {"bytes_per_s": way.rate, "threads": way.threads, "piece": way.piece_bytes},
            "foresight": last.get("foresight"),
        }
    engine.close()
    sys.stdout.write(json.dumps(made) + "\n")


def _decode(engine: Engine, tokens: int, prompt_tokens: int, seed: int) -> float:
    """Seconds of so many steps behind a prompt."""
    prompt = tuple((7919 * i + 13) % (engine.vocab - 3) + 3 for i in range(prompt_tokens))
    sampling = Sampling(temperature=1.0, seed=seed, max_tokens=tokens + 1, ignore_eos=True)
    engine.submit(Request(prompt, sampling))
    while not any(event.token is not None for event in engine.step()):
        pass  # the prompt
    began = time.perf_counter()
    while not engine.idle:
        engine.step()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
