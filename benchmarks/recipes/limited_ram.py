"""A model whose experts are twice as large as the memory allowed, in a memory cgroup: Headrace, as
it plans by itself, against llama.cpp with the file mapped. Linux, as root (or in a group that may
have children); needs an own build of llama.cpp and `pip install gguf`.

    limited_ram.py --llama-bench PATH/llama-bench --out benchmarks/results/limited-ram.json

The engines take turns, each from a cold page cache. Both decode random tokens (llama-bench draws
them, Headrace samples them from a random model), so that routing is equally skewed for both.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
from random_gguf import made

WARM = 1  # runs that fill the caches and do not count


def own_group() -> tuple[Path, bool]:
    """The memory cgroup of this process; True = version 2."""
    mount = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return mount / "memory" / path.lstrip("/"), False
        if not controllers and "memory" in _words(mount / path.lstrip("/") / "cgroup.controllers"):
            return mount / path.lstrip("/"), True
    raise SystemExit("found no memory cgroup; expected version 1 or 2 with its memory controller")


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.is_file() else []


@contextmanager
def limited(nbytes: int) -> Iterator[Path]:
    """A fresh group with this limit and no swap."""
    above, second = own_group()
    group = above / f"headrace-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(nbytes))
        swap = group / ("memory.swap.max" if second else "memory.memsw.limit_in_bytes")
        if swap.is_file():
            swap.write_text("0" if second else str(nbytes))
        yield group
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def forget(file: Path) -> None:
    """Drops a file from the page cache: cached pages stay charged to who read them first."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_ahead_kib(file: Path) -> int | None:
    """How far the kernel reads beyond a page of a mapped file that is missing."""
    device = file.stat().st_dev
    found = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for folder in (found, found.parent):
        if (folder / "queue/read_ahead_kb").is_file():
            return int((folder / "queue/read_ahead_kb").read_text())
    return None


def run(command: list[str], file: Path, limit: int) -> dict[str, object]:
    """What the command prints as its last line of JSON, and the most memory that was charged."""
    forget(file)
    with limited(limit) as group:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None,
        )
        peak = _peak(group)
    if done.returncode:
        why = "killed for memory" if done.returncode == -signal.SIGKILL else done.stderr[-500:]
        return {"samples": [], "failed": why, "peak_bytes": peak}
    found = json.loads(done.stdout)
    said = found if isinstance(found, dict) else {"samples": found[0]["samples_ts"]}
    return {**said, "peak_bytes": peak}


def _peak(group: Path) -> int | None:
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        if (group / name).is_file():
            return int((group / name).read_text())
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--llama-bench", type=Path)
    parser.add_argument("--model", type=Path, help="a GGUF file; else a random one is written")
    parser.add_argument("--kind", default="Q8_0", help="of the random one")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--skew", type=float, default=1.0)
    parser.add_argument("--share", type=float, default=0.5, help="limit, of the experts' bytes")
    parser.add_argument("--limit", type=int, help="in bytes, instead")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=4, help="tokens, of Headrace alone")
    parser.add_argument("--llama-tokens", type=int, default=8, help="for it takes seconds each")
    parser.add_argument("--rounds", type=int, default=2, help="of both engines in turn")
    parser.add_argument("--repeats", type=int, default=3, help="runs that count in each round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for Headrace")
    parser.add_argument("--only", choices=["headrace", "llama"], help="one side alone")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    file = given.model or made(given.kind, given.layers, given.skew)
    limit = given.limit or int(given.share * _experts_bytes(file))
    result = compare(given, file, limit)
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text)


def compare(given: argparse.Namespace, file: Path, limit: int) -> dict[str, object]:
    """Both sides in turn."""
    own = [sys.executable, Path(__file__).with_name("decode_runs.py"), file]
    own += ["--tokens", given.tokens, "--runs", given.repeats + WARM]
    own += ["--threads", given.threads, "--prompt", given.prompt]
    own += [word for pair in given.set for word in ("--set", pair)]
    theirs = [given.llama_bench, "-m", file, "-p", 0, "-n", given.llama_tokens, "-t", given.threads]
    theirs += ["-r", given.repeats + WARM, "-lm", "mmap", "--repack", 0, "-o", "json"]
    commands = {"headrace": own, "llama": theirs}
    runs: dict[str, list[dict[str, object]]] = {}
    for _ in range(given.rounds):
        for side, command in commands.items():
            if given.only in (None, side):
                turn = run([str(word) for word in command], file, limit)
                runs.setdefault(side, []).append(turn)
                sys.stderr.write(f"{side}: {turn}\n")
    said = {
        "bench": "limited-ram",
        "model": file.name,
        "file_bytes": file.stat().st_size,
        "limit_bytes": limit,
        "read_ahead_kib": read_ahead_kib(file),
        "commands": {
            side: " ".join(Path(word).name for word in map(str, command))
            for side, command in commands.items()
        },
        "runs": runs,
    }
    medians = {}
    for side, list_ in runs.items():
        rates = [rate for each in list_ for rate in each["samples"][WARM:]]
        if rates:
            medians[side] = statistics.median(rates)
            said[side] = {"median": medians[side], "min": min(rates), "max": max(rates)}
    if len(medians) == 2:
        said["ratio"] = medians["headrace"] / medians["llama"]
    return said


def _experts_bytes(file: Path) -> int:
    return sum(int(t.n_bytes) for t in gguf.GGUFReader(file).tensors if "_exps" in t.name)


if __name__ == "__main__":
    main()
