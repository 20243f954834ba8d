"""Decode and prefill of Headrace and llama.cpp on the same GGUF files, in turn; needs an own build
of llama.cpp and `pip install gguf`.

    against_llama.py --llama-bench PATH/llama-bench --out benchmarks/results/against-llama.json

Files are random, of true shapes, and kept in HEADRACE_HOME. Both sides decode 64 tokens one by one
and compute a prompt of 512; a figure is tokens / seconds of the whole run, the first one aside.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from random_gguf import layers_of, made

from headrace import _native
from headrace.bench import decode, prefill
from headrace.bench.checkpoint import Shape
from headrace.bench.report import fingerprint, spread

KINDS = ("Q8_0", "Q4_0", "Q4_K", "MXFP4", "BF16")
DECODED, PROMPT = 64, 512


def llama(command: Path, file: Path, threads: int) -> dict[str, float]:
    """One run of each, in its default settings: repacked weights where it has them."""
    words = [command, "-m", file, "-p", PROMPT, "-n", DECODED, "-t", threads, "-r", 1, "-o", "json"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return {"prefill" if test["n_prompt"] else "decode": test["avg_ts"] for test in found}


def headrace(file: Path, threads: int) -> dict[str, float]:
    """One run of each, and the share of the read bandwidth that decoding took."""
    common = {"model": file, "shape": Shape(), "repeats": 1, "threads": threads}
    common |= {"home": file.parent.parent, "progress": lambda done, total, what: None}
    decoded = decode.run(tokens=DECODED, **common)
    read = prefill.run(tokens=PROMPT, **common)
    return {
        "decode": decoded["mean_tokens_per_s"]["median"],
        "prefill": read["tokens_per_s"]["median"],
        "share_of_bandwidth": decoded["share_of_bandwidth"]["median"],
        "read_bandwidth": decoded["read_bandwidth"]["median"],
        "step_bytes": decoded["step_bytes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--llama-bench", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="of each file, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=7.0, help="no turn begins after")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    layers = {kind: layers_of(kind, given.gigabytes * 1e9) for kind in given.kinds}
    files = {kind: made(kind, count, 0.0) for kind, count in layers.items()}
    began = time.monotonic()
    rows: dict[str, list[dict[str, dict[str, float]]]] = {kind: [] for kind in files}
    for _ in range(given.rounds):
        for kind, file in files.items():
            if time.monotonic() - began < 60 * given.minutes:
                theirs = llama(given.llama_bench, file, given.threads)
                row = {"llama": theirs, "headrace": headrace(file, given.threads)}
                sys.stderr.write(f"{time.monotonic() - began:.0f} s {kind} {row}\n")
                rows[kind].append(row)
    result = {
        "bench": "against-llama",
        "command": f"llama-bench -p {PROMPT} -n {DECODED} -t {given.threads}",
        **{
            kind: {"layers": layers[kind], **summary(found)}
            for kind, found in rows.items()
            if found
        },
        "machine": fingerprint(threads=given.threads, isa=_native.isas()[-1]),
    }
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text)


def summary(rows: list[dict[str, dict[str, float]]]) -> dict[str, object]:
    """Figures of both sides with their spread, and the ratio of medians and of each turn."""
    said: dict[str, object] = {"rounds": len(rows)}
    for what in ("decode", "prefill"):
        sides = {side: [row[side][what] for row in rows] for side in ("headrace", "llama")}
        medians = {side: statistics.median(values) for side, values in sides.items()}
        said[what] = {
            **{side: spread(values) for side, values in sides.items()},
            "ratio": medians["headrace"] / medians["llama"],
            "ratios": spread([row["headrace"][what] / row["llama"][what] for row in rows]),
        }
    for name in ("share_of_bandwidth", "read_bandwidth"):
        said[name] = spread([row["headrace"][name] for row in rows])
    said["step_bytes"] = rows[0]["headrace"]["step_bytes"]
    return said


if __name__ == "__main__":
    main()
