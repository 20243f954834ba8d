"""Sessions of clients as data: what they send turn by turn, whatever the server answers.

docs/formats/sessions.md describes the file. A turn changes the conversation, sends it, and the
answer becomes part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.files import read_text

Message = dict[str, Any]
MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. In this order: `edits`, then `add`, then `carrier` for this request alone."""

    add: tuple[Message, ...]
    max_tokens: int = 64
    pause_s: float = 0.0  # before it, a client's own work
    edits: tuple[tuple[int, Message | None], ...] = ()  # (index, new message; None = it goes)
    carrier: Message | None = None
    answer: Message | None = None  # what the client keeps; None = what the server said


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation. It starts with its run, or when turn `after_turn` of another has ended."""

    name: str
    turns: tuple[Turn, ...]
    kind: str = "session"
    tools: tuple[dict[str, Any], ...] = ()
    start_s: float = 0.0
    after: str = ""
    after_turn: int = 0
    main: bool = True  # False: a title request or a subagent beside it
    body: dict[str, Any] = field(default_factory=dict)  # further fields of every request


def write_sessions(path: Path, sessions: Iterable[Session]) -> None:
    path.write_text("".join(json.dumps(asdict(s), ensure_ascii=False) + "\n" for s in sessions))


def read_sessions(path: Path) -> list[Session]:
    """Raises ConfigError naming the line that is wrong."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path} is larger than {MOST_BYTES >> 30} GiB")
        lines = read_text(path, MOST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", expected="sessions, JSONL") from error
    sessions = [
        _session(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()
    ]
    names = [session.name for session in sessions]
    if not sessions or len(set(names)) != len(names):
        raise ConfigError(f"{path}: no sessions, or two of one name", expected="distinct names")
    turns = {session.name: len(session.turns) for session in sessions}
    for session in sessions:
        if session.after and not 0 <= session.after_turn < turns.get(session.after, 0):
            raise ConfigError(
                f"{path}: {session.name!r} starts after turn {session.after_turn} of "
                f"{session.after!r}",
                expected="a turn of another session",
            )
    return sessions


def _session(line: str, where: str) -> Session:
    try:
        data = json.loads(line)
        turns = tuple(_turn(turn) for turn in data.pop("turns"))
        tools = tuple(data.pop("tools", ()))
        session = Session(turns=turns, tools=tools, **data)
        fine = isinstance(session.name, str) and session.turns
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{where}: {error}", expected="a session as docs/formats/sessions.md describes"
        ) from error
    if not fine or session.after == session.name:
        raise ConfigError(f"{where}: a session needs a name and turns, and starts after another")
    return session


def _turn(data: dict[str, Any]) -> Turn:
    add = tuple(data.pop("add", ()))
    edits = tuple((int(at), message) for at, message in data.pop("edits", ()))
    return Turn(add=add, edits=edits, **data)


def sent(messages: Sequence[Message], turn: Turn) -> tuple[list[Message], list[Message]]:
    """(the conversation that stays, what this request sends). Edits count from the beginning, or
    below zero from the end; one beyond it changes nothing."""
    kept: list[Message | None] = list(messages)
    for at, message in turn.edits:
        if -len(kept) <= at < len(kept):
            kept[at] = message
    stays = [message for message in kept if message is not None]
    stays += turn.add
    return stays, [*stays, *([turn.carrier] if turn.carrier is not None else [])]


def bound(messages: Sequence[Message]) -> list[Message]:
    """Results without an id name the calls before them in order; without a call a user says it."""
    made: list[Message] = []
    calls: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = [call["id"] for call in message.get("tool_calls") or ()]
        elif message["role"] == "tool" and "tool_call_id" not in message:
            own = {"tool_call_id": calls.pop(0)} if calls else {"role": "user"}
            message = {**message, **own}
        made.append(message)
    return made
