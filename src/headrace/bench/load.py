"""Replays sessions against a server, each in a thread of its own, and sums up what clients saw."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.bench.load_client import Reply, Target
from headrace.bench.load_sessions import Message, Session, bound, sent

LIMITS_S = (120, 300)  # of clients, without data


@dataclass(slots=True)
class _Running:
    """One session under way."""

    session: Session
    ended: list[threading.Event]  # of each turn
    replies: list[Reply] = field(default_factory=list)


def replay(
    sessions: Sequence[Session],
    target: Target,
    *,
    timeout_s: float = 3600.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Runs them all; the result is JSON-able. A session ends at its first error."""
    runs = {s.name: _Running(s, [threading.Event() for _ in s.turns]) for s in sessions}
    total = sum(len(s.turns) for s in sessions)
    began = time.perf_counter()

    def play(run: _Running) -> None:
        session = run.session
        try:
            if session.after:
                runs[session.after].ended[session.after_turn].wait()
            time.sleep(max(0.0, session.start_s - (time.perf_counter() - began)))
            _play(run, target, timeout_s)
        finally:
            for event in run.ended:
                event.set()

    threads = [threading.Thread(target=play, args=(run,), daemon=True) for run in runs.values()]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        progress(sum(len(run.replies) for run in runs.values()), total)
        time.sleep(0.1)
    wall_s = time.perf_counter() - began
    return _summary([(run.session, run.replies) for run in runs.values()], wall_s)


def _play(run: _Running, target: Target, timeout_s: float) -> None:
    session, messages = run.session, list[Message]()
    for turn, ended in zip(session.turns, run.ended, strict=True):
        time.sleep(turn.pause_s)
        messages, request = sent(messages, turn)
        reply = target.ask(
            bound(request),
            max_tokens=turn.max_tokens,
            tools=session.tools,
            more=session.body,
            timeout_s=timeout_s,
        )
        run.replies.append(reply)
        ended.set()
        if reply.error:
            return
        messages.append(reply.answer.message() if turn.answer is None else turn.answer)


def _summary(done: Sequence[tuple[Session, Sequence[Reply]]], wall_s: float) -> dict[str, Any]:
    kinds: dict[str, list[Reply]] = {}
    for session, replies in done:
        kinds.setdefault(session.kind, []).extend(replies)
    return {
        "wall_s": wall_s,
        "kinds": {kind: _figures(replies) for kind, replies in kinds.items()},
        "all": _figures([reply for _, replies in done for reply in replies]),
        "sessions": {
            session.name: {
                "turns": [_turn(reply) for reply in replies],
                "missing": len(session.turns) - len(replies),
                "error": next((reply.error for reply in replies if reply.error), ""),
            }
            for session, replies in done
        },
    }


def _turn(reply: Reply) -> dict[str, Any]:
    return {
        "first_token_s": reply.first_s,
        "seconds": reply.last_s,
        "prompt_tokens": reply.answer.prompt,
        "cached_tokens": reply.answer.cached,
        "completion_tokens": reply.answer.completion,
        "decode_per_s": reply.decode_rate,
        "longest_silence_s": reply.silence_s,
    }


def _figures(replies: Sequence[Reply]) -> dict[str, Any]:
    fine = [reply for reply in replies if not reply.error]
    firsts = [reply.first_s for reply in fine if reply.first_s is not None]
    rates = [rate for reply in fine if (rate := reply.decode_rate) is not None]
    prompt, cached = sum(r.answer.prompt for r in fine), sum(r.answer.cached for r in fine)
    waits = [max(reply.first_s or 0.0, reply.silence_s) for reply in fine]
    return {
        "turns": len(replies),
        "errors": len(replies) - len(fine),
        "first_token_s": {
            "mean": statistics.fmean(firsts) if firsts else None,
            "median": statistics.median(firsts) if firsts else None,
            "worst": max(firsts, default=None),
        },
        "decode_per_s": statistics.median(rates) if rates else None,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "prefilled_tokens": prompt - cached,
        "completion_tokens": sum(reply.answer.completion for reply in fine),
        **{f"over_{limit}_s": sum(wait > limit for wait in waits) for limit in LIMITS_S},
    }
