"""Whole sessions of clients against a server without a model; the load generator is the client."""

from __future__ import annotations

import json
import socket
import time
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from scripted import Scripted, scripted_server

from headrace.bench.load import replay
from headrace.bench.load_client import Target
from headrace.bench.load_dialects import DIALECTS
from headrace.bench.load_report import chart, text
from headrace.bench.load_sessions import (
    Session,
    Turn,
    bound,
    read_sessions,
    sent,
    write_sessions,
)
from headrace.bench.load_workloads import WORKLOADS
from headrace.errors import ConfigError

SCALE = 0.01


def answer(prompt: str) -> str:
    return f"I have read {len(prompt)} characters, and the wheel turns the stone."


@pytest.mark.parametrize("slots", [0, 64])
@pytest.mark.parametrize("kind", sorted(WORKLOADS))
def test_made_up_sessions(kind: str, slots: int, tmp_path: Path) -> None:
    sessions = WORKLOADS[kind](1, SCALE)
    with scripted_server(tmp_path, answer, state_slots=slots) as server:
        result = replay(sessions, Target(server.url))
        server.wait_idle()
        assert server.engine.status()["kv_blocks_used"] == 0
    figures = result["all"]
    assert figures["turns"] == sum(len(s.turns) for s in sessions)
    assert figures["errors"] == figures["over_120_s"] == 0
    assert figures["prefilled_tokens"] + figures["cached_tokens"] == figures["prompt_tokens"]
    if kind == "assistant":
        turns = result["sessions"]["assistant"]["turns"]
        for before, turn in pairwise(turns):
            # All but the carrier of the turn before; its answer moved, so it is read again.
            new = turn["prompt_tokens"] - before["prompt_tokens"] + before["completion_tokens"]
            assert turn["prompt_tokens"] - turn["cached_tokens"] <= new + 60
    assert kind in text(result)
    assert (chart(result) or "").startswith("<svg")
    json.dumps(result)


def test_a_session_reads_as_it_was_written(tmp_path: Path) -> None:
    said = {"role": "user", "content": "Grüße"}
    turn = Turn((said,), 5, 0.5, ((0, None), (-1, said)), said, {"role": "assistant"})
    sessions = [Session("a", (turn,)), Session("b", (turn, turn), after="a", main=False)]
    write_sessions(tmp_path / "s.jsonl", sessions)
    assert read_sessions(tmp_path / "s.jsonl") == sessions


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", '{"name": "a"}', '{"name": "a", "turns": []}', '{"name": 1, "turns": [{}]}'),
        *('{"name": "a", "turns": [{"edits": [[1]]}]}', '{"name": "a", "turns": [{}], "x": 1}'),
        *('{"name": "a", "turns": [{}], "after": "b"}', "[" * 100_000, ""),
    ],
)
def test_lines_that_are_no_session(line: str, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError):
        read_sessions(path)


def test_what_a_turn_sends() -> None:
    a, b, c, d = ({"role": "user", "content": word} for word in "abcd")
    turn = Turn((c,), edits=((0, None), (-1, d), (9, a)), carrier=a)
    assert sent([a, b], turn) == ([d, c], [d, c, a])


def test_results_are_bound_to_the_calls_before_them() -> None:
    calls = {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]}
    result = {"role": "tool", "content": "r"}
    named = [{**result, "tool_call_id": name} for name in ("a", "b")]
    said = {"role": "user", "content": "r"}
    assert bound([calls, result, result, result]) == [calls, *named, said]
    assert bound([result, named[1]]) == [said, named[1]]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_says_and_counts_the_same(dialect: str, tmp_path: Path) -> None:
    """Tool calls, thinking and system messages in the middle, as the chat API has them."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    calls = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    first = Turn(({"role": "system", "content": "s"}, {"role": "user", "content": "u"}))
    second = Turn(({"role": "tool", "content": "r"}, {"role": "user", "content": "v"}))
    session = Session("a", (first, second), tools=(tool,))
    with scripted_server(tmp_path, lambda _: calls) as server:
        result = replay([session], Target(server.url, dialect=dialect))
        prompts = [prompt for prompt, _ in server.heard]
        texts = [server.session.renderer.tokenizer.decode(p, skip_special=False) for p in prompts]
    turns = result["sessions"]["a"]["turns"]
    assert [turn["prompt_tokens"] for turn in turns] == [len(prompt) for prompt in prompts]
    assert turns[1]["cached_tokens"] >= len(prompts[0])
    assert all(turn["completion_tokens"] > 5 for turn in turns)
    assert "<tool_response>\nr\n</tool_response>" in texts[1]
    assert "hm" in texts[1]


def test_a_dialect_that_is_none() -> None:
    with pytest.raises(ConfigError, match="chat, messages, responses"):
        Target("http://127.0.0.1:1", dialect="x")


def raw_request(server: Scripted, *, stream: bool, word: str) -> socket.socket:
    body = json.dumps(
        {"messages": [{"role": "user", "content": word}], "stream": stream, "max_tokens": 4000}
    ).encode()
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    made = socket.create_connection((parts.hostname, parts.port or 80))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    made.sendall(head.encode() + body)
    return made


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_is_cancelled_in_any_phase(stream: bool, tmp_path: Path) -> None:
    """One decodes, one is read in small chunks, two wait; all leave without an answer."""
    numbers = {"sequences": 2, "step_tokens": 16, "context": 4000}
    with scripted_server(
        tmp_path, lambda _: "the wheel " * 900, pace=lambda _: 0.005, **numbers
    ) as server:
        talk = "the water runs down " * 200
        clients = [
            raw_request(server, stream=stream, word=word)
            for word in ("short", talk, "third " + talk, "fourth")
        ]
        until = time.monotonic() + 20
        while True:
            status = server.engine.status()
            if (status["running"], status["waiting"]) == (2, 2):
                break
            assert time.monotonic() < until
            time.sleep(0.01)
        assert [place["position"] for place in status["queue"]] == [1, 2]
        for client in reversed(clients):  # the queued ones first
            client.close()
        server.wait_idle()
        status = server.engine.status()
        ended = status["requests"]
        assert ended["cancelled"] == 4, ended
        assert status["generated_tokens"] < 800
        # Sessions go on as if nothing had been.
        turn = Turn(({"role": "user", "content": "x"},), max_tokens=3)
        assert replay([Session("a", (turn,))], Target(server.url))["all"]["errors"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("slots", [0, 40])
def test_nothing_is_left_behind(slots: int, tmp_path: Path) -> None:
    """`headrace bench soak` does the same to a server with a model, for as long as one likes."""
    from headrace.bench.soak import soak

    numbers = {"sequences": 5, "kv_tokens": 20_000, "context": 8000, "state_slots": slots}
    with scripted_server(tmp_path, answer, pace=lambda _: 0.002, **numbers) as server:
        result = soak(Target(server.url), seconds=12)
        server.wait_idle()
        server.engine.check()
    assert result["errors"] == 0
    assert result["answers"] > 20
    assert result["left"] > 5
    assert not any(result["left_behind"].values())
