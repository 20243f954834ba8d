"""A tiny random checkpoint with a real tokenizer and template, and `headrace serve` over it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai

sys.path.append(str(Path(__file__).parents[1] / "unit" / "chat"))
from tiny_chat import HERMES_TEMPLATE, byte_level_json, write_checkpoint

from headrace.bench.checkpoint import Shape, ensure

SHAPE = Shape(
    hidden=64, width=32, experts=4, top_k=2, layers=2, heads=4, kv_heads=2, head_dim=16,
    vocab=432, dtype="float32",
)  # fmt: skip
COMMAND = [sys.executable, "-c", "from headrace.cli.main import main; main()"]


def tiny_model(folder: Path) -> Path:
    ensure(folder, SHAPE, lambda done, total, what: None)
    write_checkpoint(folder, byte_level_json(marks=True), HERMES_TEMPLATE)
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    end = next(token["id"] for token in tokens if token["content"] == "<|im_end|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    return folder


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


@dataclass
class Served:
    """A server process; its log is read all along, so that its pipe never fills."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    url: str = ""

    @classmethod
    def start(cls, model: Path, *flags: str, wait_s: float = 110) -> Served:
        process = subprocess.Popen(
            [*COMMAND, "serve", str(model), "--port", "0", *flags],
            stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        served = cls(process)
        threading.Thread(target=served._read, daemon=True).start()
        until = time.monotonic() + wait_s
        while not served.url:
            assert process.poll() is None, served.log
            assert time.monotonic() < until, served.log
            time.sleep(0.02)
            found = re.search(r"serving \S+ at (http://\S+)", served.log)
            served.url = found[1] if found else ""
        return served

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)


@contextmanager
def serving(model: Path, *flags: str) -> Iterator[Served]:
    """A server that ends well."""
    served = Served.start(model, *flags)
    yield served
    assert served.stop() == 0
    assert "Traceback" not in served.log, served.log[served.log.index("Traceback") :][-6000:]


def official(server: Served) -> openai.OpenAI:
    """The official client, which tries once."""
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
