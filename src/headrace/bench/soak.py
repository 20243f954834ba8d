"""Conversations that go on for a while, with answers cut off at random: nothing may be left behind.

Clients hang up in the queue, while a prompt is read and while an answer is written.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import psutil

from headrace.bench.load_client import Target
from headrace.bench.load_sessions import Message

LEAVES = 0.3  # of all requests are left before their end
MOST_TURNS = 12  # then a conversation begins anew
LENGTHS = (4, 20, 60)  # of answers, in tokens
CHAT = "/v1/chat/completions"
# More than a server keeps: answers, and words whose tokens the tokenizers library remembers.
FILLED_ANSWERS, FILLED_WORDS = 5_000, 12_000


def soak(
    target: Target,
    *,
    seconds: float,
    conversations: int = 8,
    pid: int | None = None,
    fill: bool = False,
    seed: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """`pid`: of the server, whose memory is watched. The result says what was left behind.

    `fill`: before the time begins, the server is given more words and answers than it keeps, so
    that its memory has nothing left to fill.
    """
    if fill:
        _fill(target, conversations)
    until, counts = time.monotonic() + seconds, {"answers": 0, "left": 0, "errors": 0}
    lock = threading.Lock()

    def talk(number: int) -> None:
        rng, messages = random.Random(seed * 1000 + number), list[Message]()
        while time.monotonic() < until:
            if len(messages) > 2 * MOST_TURNS or not messages:
                messages = [{"role": "system", "content": _words(rng, 300)}]
            asked = [*messages, {"role": "user", "content": _words(rng, rng.choice((5, 40, 150)))}]
            most = rng.choice(LENGTHS)
            if rng.random() < LEAVES:
                _leave(target, {"messages": asked, "max_tokens": most, "model": target.model}, rng)
                kind = "left"
            else:
                reply = target.ask(asked, max_tokens=most, timeout_s=120)
                kind = "errors" if reply.error else "answers"
                messages = asked if reply.error else [*asked, reply.answer.message()]
            with lock:
                counts[kind] += 1

    threads = [threading.Thread(target=talk, args=(i,), daemon=True) for i in range(conversations)]
    for thread in threads:
        thread.start()
    memory: list[int] = []
    began = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        progress(int(time.monotonic() - began), int(seconds))
        if pid is not None:
            memory.append(psutil.Process(pid).memory_info().rss)
        time.sleep(min(1.0, seconds / 20))
    return {**counts, "seconds": time.monotonic() - began, **_rest(target), **_memory(memory)}


def _words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choice(("water", "wheel", "stone", "mill", "runs")) for _ in range(n))


def _fill(target: Target, at_once: int) -> None:
    """Words of a user and of a prompt, which a tokenizer remembers apart; then long answers."""
    words = " ".join(_word(i) for i in range(FILLED_WORDS))
    said = {"model": target.model, "max_tokens": 1}
    _send(target, CHAT, {**said, "messages": [{"role": "user", "content": words}]})
    _send(target, "/v1/completions", {**said, "prompt": words})

    def answer(number: int) -> None:
        target.ask(
            [{"role": "user", "content": _word(number)}], max_tokens=max(LENGTHS), timeout_s=120
        )

    with ThreadPoolExecutor(at_once) as pool:
        for _ in pool.map(answer, range(FILLED_ANSWERS)):
            pass


def _word(number: int) -> str:
    """A word of its own for each number."""
    return "w" + "".join(chr(ord("a") + int(digit)) for digit in str(number))


def _send(target: Target, path: str, body: dict[str, Any]) -> None:
    """Whatever comes of it: words beyond the context are read before they are refused."""
    with closing(target.send(path, body, timeout_s=120)) as connection:
        connection.getresponse().read()


def _leave(target: Target, body: dict[str, Any], rng: random.Random) -> None:
    """Sends a request, reads for a moment and hangs up; streaming or not."""
    with suppress(OSError), closing(target.send(CHAT, {**body, "stream": rng.random() < 0.5})):
        time.sleep(rng.choice((0.0, 0.01, 0.1, 0.4)))


def _rest(target: Target, patience_s: float = 60.0) -> dict[str, Any]:
    """What an idle server still holds."""
    until = time.monotonic() + patience_s
    while True:
        with closing(target.send("/engine/status")) as connection:
            engine = json.loads(connection.getresponse().read())["engine"]
        names = ("running", "waiting", "kv_blocks_used", "state_slots_used")
        held = {name: engine[name] for name in names}
        if not any(held.values()) or time.monotonic() > until:
            return {"left_behind": held, "requests": engine["requests"]}
        time.sleep(0.1)


def _memory(seen: list[int]) -> dict[str, Any]:
    """Medians of each tenth of the run, in bytes: what is bounded fills up, and then it is flat."""
    if len(seen) < 10:
        return {}
    tenth = len(seen) // 10
    parts = (sorted(seen[i * tenth : (i + 1) * tenth]) for i in range(10))
    return {"memory_bytes": [part[len(part) // 2] for part in parts]}
