"""Sessions of agents through API, templates, scheduler and prefix cache of a recurrent model.

Prompt tokens computed again, against the fewest that any cache could for the prompts as rendered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agent_templates import Family, family
from scripted import Scripted, scripted_server

from headrace.bench.load_client import Target
from headrace.engine.seq import common

Message = dict[str, Any]
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "lines": {"type": "string"},
                "all": {"type": "string", "default": "no"},
            },
        },
    },
}
EXACT = ("append-only", "side requests", "serialised anew")
SHAPES = (
    *EXACT,
    *("carrier", "dropped thinking", "pruned results", "subagents", "no boundary", "a new session"),
)
TURNS = 12
SPEAKS = 4  # turns from one message of the user to the next


def writer(seed: int) -> Callable[[int], str]:
    rng = random.Random(seed)
    return lambda n: " ".join(rng.choice(("water", "wheel", "stone", "mill")) for _ in range(n))


@dataclass
class Model:
    """Thinks, and calls until it is told that a result is the last one; never the same twice."""

    family: Family
    done: bool = False
    prompts: list[str] = field(default_factory=list)  # seen so far

    def say(self, prompt: str) -> str:
        self.prompts.append(prompt)
        n = len(self.prompts)
        words = writer(1000 + n)
        call = {"path": f"/src/{n}", "lines": words(6)}
        text = f"I see {n}." if self.done else ""
        return self.family.said(f"So {words(25)}", text, None if self.done else call)


@dataclass
class Agent:
    """One conversation of a client that keeps what it is told, and rewrites it by its shape."""

    target: Target
    model: Model
    shape: str
    words: Callable[[int], str]
    messages: list[Message] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    computed: dict[int, int] = field(default_factory=dict)  # by number of the request

    def ask(self, extra: list[Message] | None = None, *, tools: bool = True) -> None:
        reply = self.target.ask(
            [*self.messages, *(extra or [])],
            max_tokens=2000,
            tools=[TOOL] if tools else [],
            timeout_s=30,
        )
        assert not reply.error, reply.error
        self.computed[len(self.model.prompts) - 1] = reply.answer.prompt - reply.answer.cached
        said = reply.answer.message()
        self.calls = [call["id"] for call in said.get("tool_calls", ())]
        if self.shape == "serialised anew":
            said = _rewritten(said)
        if self.shape == "dropped thinking":
            said.pop("reasoning_content", None)
            said.pop("signature", None)
        self.messages.append(said)

    def turn(self, number: int) -> None:
        """The user speaks, or what was called has a result."""
        if number % SPEAKS == 0:
            self.messages.append({"role": "user", "content": f"{number}: {self.words(40)}"})
        else:
            result = self.words((20, 60, 200)[number % 3])
            (call,) = self.calls
            self.messages.append({"role": "tool", "content": result, "tool_call_id": call})
            if self.shape == "append-only" and number % SPEAKS == 2:
                self.messages.append({"role": "system", "content": self.words(20)})
        self.model.done = number % SPEAKS == SPEAKS - 1
        carrier = {"role": "user", "content": f"internal: {self.words(12)}"}
        self.ask([carrier] if self.shape == "carrier" else None)
        self.edit(number)

    def edit(self, number: int) -> None:
        """Of what was sent so far."""
        at = [i for i, m in enumerate(self.messages) if m["role"] == "tool"]
        if self.shape == "pruned results" and number % 6 == 5:
            for i in at[:-2]:
                self.messages[i] = {**self.messages[i], "content": "gone"}
        if self.shape == "no boundary" and number % 3 == 2:
            i = at[-1]
            text = self.messages[i]["content"]
            self.messages[i] = {**self.messages[i], "content": text[: len(text) // 2] + " mud"}


def _rewritten(said: Message) -> Message:
    """Keys in another order, a default added, other blanks, the id without its sign."""
    calls = []
    for call in said.get("tool_calls", ()):
        given = json.loads(call["function"]["arguments"])
        given = dict(sorted({**given, "all": "no"}.items()))
        function = {**call["function"], "arguments": json.dumps(given, indent=2)}
        calls.append({**call, "function": function})
    return {**said, **({"tool_calls": calls} if calls else {})}


def play(server: Scripted, model: Model, dialect: str, shape: str) -> Agent:
    target = Target(server.url, dialect=dialect)

    def begun(shape: str, seed: int, system: str) -> Agent:
        begin = [{"role": "system", "content": system}]
        return Agent(target, model, shape, writer(seed), begin)

    system = writer(0)(1500)
    main = begun(shape, 1, system)
    others: list[Agent] = []
    for number in range(TURNS):
        main.turn(number)
        if shape == "side requests":
            for i in range(2):
                side = begun("", 100 * number + i + 10, writer(10 * number + i + 5)(700))
                side.messages.append({"role": "user", "content": "A title, please."})
                model.done = True
                side.ask(tools=False)
        if shape == "subagents" and number % SPEAKS == 1:
            others = [begun("", 50 + number + i, system) for i in range(2)]
        if shape == "subagents" and number % SPEAKS:
            for other in others:
                other.turn(number % SPEAKS - 1)
        if shape == "a new session" and number % SPEAKS == SPEAKS - 1:
            main.messages = main.messages[:1]
    server.wait_idle()
    return main


def fewest(heard: list[tuple[list[int], list[int]]]) -> list[int]:
    """Prompt tokens of each request that any cache would compute."""
    past: list[list[int]] = []
    least: list[int] = []
    for prompt, answer in heard:
        least.append(len(prompt) - max((common(prompt[:-1], old) for old in past), default=0))
        past.append([*prompt, *answer[:-1]])
    return least


PAIRS = (("qwen3", "chat"), ("qwen3.5", "messages"), ("harmony", "responses"))
# Each shape with one family by default, and with the others where there is time.
CASES = [
    pytest.param(*pair, shape, marks=() if i % 3 == j else pytest.mark.slow)
    for i, shape in enumerate(SHAPES)
    for j, pair in enumerate(PAIRS)
]


@contextmanager
def played(kind: str, dialect: str, shape: str, folder: Path) -> Iterator[tuple[Scripted, Agent]]:
    model = Model(family(kind))
    renderer = model.family.renderer
    # A tenth of the small cache holds a side request, and all of them are three times the cache.
    kv_tokens = 12_000 if shape == "side requests" else 64_000
    numbers = {"state_slots": 64, "kv_tokens": kv_tokens, "context": 12_000}
    with scripted_server(folder, model.say, renderer=renderer, **numbers) as server:
        yield server, play(server, model, dialect, shape)


@pytest.mark.parametrize(("kind", "dialect", "shape"), CASES)
def test_a_turn_costs_what_is_new_in_it(
    kind: str, dialect: str, shape: str, tmp_path: Path
) -> None:
    with played(kind, dialect, shape, tmp_path) as (server, main):
        status = server.engine.status()
    least, prompts = fewest(server.heard), [len(prompt) for prompt, _ in server.heard]
    assert sum(prompts) == status["prompt_tokens"]
    if shape == "side requests":  # what was said beside may go
        best, sent = (sum(many[i] for i in main.computed) for many in (least, prompts))
        computed = sum(main.computed.values())
    else:
        best, sent = sum(least), sum(prompts)
        computed = status["prompt_tokens"] - status["cached_tokens"]
    assert computed >= best
    if shape in EXACT:
        assert computed - best <= 0.01 * best
    assert computed - best <= 0.02 * sent


@pytest.mark.parametrize(
    ("kind", "dialect"),
    [
        ("qwen3", "messages"),
        pytest.param("qwen3.5", "responses", marks=pytest.mark.slow),
        pytest.param("harmony", "chat", marks=pytest.mark.slow),
    ],
)
def test_calls_that_come_back_rewritten_make_the_same_prompts(
    kind: str, dialect: str, tmp_path: Path
) -> None:
    heard = []
    for shape in ("as it was said", "serialised anew"):
        with played(kind, dialect, shape, tmp_path) as (server, _):
            heard.append(server.heard)
    assert heard[0] == heard[1]
