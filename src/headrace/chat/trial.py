"""Whether a grammar compiles within bounds, found out in another process.

The compiler has no bound on its work for some JSON schemas, and a thread in it cannot be stopped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

from headrace.errors import RequestError

COMPILE_S = 2.0  # of processor time
TRIALS = 2  # at once
MAX_JOBS = 200  # of one process
_WORKER = Path(__file__).with_name("trial_worker.py")
_TOKEN = re.compile(r"<\[\d+\]>")


class Trials:
    """Processes that try grammars, begun when they are needed. For use by several threads."""

    def __init__(self, *, seconds: float = COMPILE_S, most: int = TRIALS) -> None:
        self.started = 0
        self._seconds = seconds
        self._free = threading.BoundedSemaphore(most)
        self._idle: list[_Worker] = []

    def check(self, grammar: str, field: str, *, lexer_fuel: int) -> None:
        """`grammar` is llguidance's JSON; whether it is valid is not said.

        Raises RequestError naming `field` if to compile it takes too much time or memory.
        """
        # There is a token for each byte there, and any of them takes as much work as another.
        job = {
            "grammar": _TOKEN.sub("<[9]>", grammar),
            "seconds": self._seconds,
            "lexer_fuel": lexer_fuel,
        }
        with self._free:
            worker = self._ready()
            if worker.answers(json.dumps(job).encode() + b"\n"):
                self._idle.append(worker)
                return
            worker.end()
        raise RequestError(
            f"a grammar that takes more than {self._seconds:g} s or too much memory to compile",
            field=field,
            expected="a smaller schema or pattern",
            fix="leave out bounds, patterns or properties",
        )

    def close(self) -> None:
        """Ends the processes that are idle."""
        while self._idle:
            self._idle.pop().end()

    def _ready(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.fresh:
                return worker
            worker.end()
        self.started += 1
        return _Worker()


class _Worker:
    """One process."""

    def __init__(self) -> None:
        # Not its own folder on the path: modules of it have names of the standard library's.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._jobs = 0

    @property
    def fresh(self) -> bool:
        """Alive, and its memory not yet in pieces."""
        return self._jobs < MAX_JOBS and self.process.poll() is None

    def answers(self, job: bytes) -> bool:
        self._jobs += 1
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(job)
            self.process.stdin.flush()
            return bool(self.process.stdout.readline())
        except OSError:
            return False

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
