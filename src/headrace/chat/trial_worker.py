"""The process in which `chat/trial.py` tries grammars: one JSON object a line in, one line out.

It runs as a file, not as a module: it needs nothing of the package and starts in a tenth of a
second. A grammar that takes too much ends it.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

import llguidance

MEMORY_BYTES = 2 << 30  # of addresses; it has 200 MB of them before the first grammar


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for the server
    tokenizer = llguidance.LLTokenizer("byte")
    for line in sys.stdin.buffer:
        job = json.loads(line)
        limits = llguidance.LLParserLimits(
            verbose_errors=False, initial_lexer_fuel=job["lexer_fuel"]
        )
        # Counts the time that is worked; the signal ends the process wherever it is.
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        matcher = llguidance.LLMatcher(tokenizer, job["grammar"], log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        del matcher
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(b"done\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
