"""Made-up sessions of four kinds: long reasoning, a coding agent with tools, subagents side by
side, an assistant on a long system prompt. Sizes are in tokens of about four characters, times a
scale.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from headrace.bench.load_sessions import Message, Session, Turn

_SYLLABLES = [
    "ba",
    "de",
    "fi",
    "go",
    "lu",
    "ma",
    "ne",
    "po",
    "ri",
    "su",
    "ta",
    "ve",
    "wi",
    "xo",
    "ya",
    "ze",
]


class _Writer:
    """Text that looks like words, the same for the same seed."""

    def __init__(self, seed: int, scale: float) -> None:
        self._rng, self._scale = random.Random(seed), scale

    def text(self, tokens: int) -> str:
        length = max(1, int(tokens * self._scale)) * 4
        words: list[str] = []
        size = 0
        while size < length:
            words.append("".join(self._rng.choices(_SYLLABLES, k=self._rng.randint(1, 3))))
            size += len(words[-1]) + 1
        return " ".join(words)

    def tokens(self, tokens: int) -> int:
        return max(1, int(tokens * self._scale))

    def user(self, tokens: int) -> Message:
        return {"role": "user", "content": self.text(tokens)}

    def system(self, tokens: int) -> Message:
        return {"role": "system", "content": self.text(tokens)}


def reasoning(seed: int, scale: float) -> list[Session]:
    """Single turns, short prompts, long answers."""
    write = _Writer(seed, scale)
    return [
        Session(f"reason-{i}", (Turn((write.user(180),), write.tokens(8000)),), "reasoning")
        for i in range(4)
    ]


def coding(seed: int, scale: float) -> list[Session]:
    """A coding agent: a long system prompt, then tool results of many sizes over three tasks."""
    write, rng = _Writer(seed, scale), random.Random(seed + 1)
    turns: list[Turn] = []
    for task in range(3):
        first = (write.system(7000),) if task == 0 else ()
        turns.append(Turn((*first, write.user(400)), write.tokens(300)))
        for _ in range(6):
            result = write.user(rng.choice((200, 600, 1500, 4000)))
            turns.append(Turn((result,), write.tokens(250)))
    title = Turn((write.system(300), write.user(120)), write.tokens(30))
    return [
        Session("coding", tuple(turns), "coding"),
        Session("coding-title", (title,), "coding", after="coding", main=False),
    ]


def subagents(seed: int, scale: float) -> list[Session]:
    """A main conversation and three subagents at once, all growing to 60k tokens."""
    write = _Writer(seed, scale)
    system = write.system(14000)
    main = [Turn((system, write.user(600)), write.tokens(300))]
    main += [Turn((write.user(3500),), write.tokens(300)) for _ in range(12)]
    sessions = [Session("main", tuple(main), "subagents")]
    for i in range(3):
        turns = [Turn((write.system(9000), write.user(500)), write.tokens(250))]
        turns += [Turn((write.user(4000),), write.tokens(250)) for _ in range(12)]
        sessions.append(
            Session(f"sub-{i}", tuple(turns), "subagents", after="main", after_turn=1, main=False)
        )
    return sessions


def assistant(seed: int, scale: float) -> list[Session]:
    """13 turns on a system prompt of 24.5k tokens; a throw-away message ends every request."""
    write = _Writer(seed, scale)
    turns = []
    for i in range(13):
        first = (write.system(24500),) if i == 0 else ()
        carrier = {"role": "user", "content": f"internal context {i}: {write.text(60)}"}
        turns.append(Turn((*first, write.user(350)), write.tokens(200), carrier=carrier))
    return [Session("assistant", tuple(turns), "assistant")]


WORKLOADS: Mapping[str, Callable[[int, float], list[Session]]] = {
    "reasoning": reasoning,
    "coding": coding,
    "subagents": subagents,
    "assistant": assistant,
}
