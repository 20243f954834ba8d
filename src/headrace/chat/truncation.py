"""The oldest of a conversation left out, so that the rest fits.

System messages stay, as do the newest user message and the last turn; a call and its results go
together, and what is left begins with a user's message where the conversation did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from headrace.chat.length import ContextOverflow
from headrace.chat.types import ChatRequest, Message

T = TypeVar("T")

# What is left out comes in steps of this share of the context: the next turns, which send all of it
# again, then leave out the same and find their prefix computed.
STEPS = 8


def fitted(
    request: ChatRequest, context: int, room: int, attempt: Callable[[ChatRequest, int], T]
) -> T:
    """`attempt` of the request, shortened until it raises no ContextOverflow of its messages.

    `attempt` gets the most tokens there may be: `context` less the `room` that an answer needs,
    and all of it where nothing more may go. Raises ContextOverflow where what must stay is too
    long by itself.
    """
    while True:
        last = without_oldest(request.messages, 0.0) is None
        try:
            return attempt(request, context if last else context - room)
        except ContextOverflow as error:
            step = max(1, context // STEPS)
            excess = -(-(error.tokens - context + room) // step) * step
            left = without_oldest(request.messages, excess / max(1, error.tokens))
            if left is None:
                raise
            request = replace(request, messages=left)


def without_oldest(messages: Sequence[Message], share: float) -> tuple[Message, ...] | None:
    """Without so large a share of the text, by its oldest units; None if nothing may go."""
    units = _units(messages)
    if not units:
        return None
    wanted = share * sum(map(_size, messages))
    gone: set[int] = set()
    dropped = 0
    for unit in units:
        if gone and dropped >= wanted and _begins_well(messages, gone):
            break
        gone.update(unit)
        dropped += sum(_size(messages[i]) for i in unit)
    return tuple(message for i, message in enumerate(messages) if i not in gone)


def _units(messages: Sequence[Message]) -> list[list[int]]:
    """Places of messages that go together, oldest first, without what must stay."""
    called: dict[str, list[int]] = {}
    units: list[list[int]] = []
    for i, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id in called:
            called[message.tool_call_id].append(i)
            continue
        unit = [i]
        if message.role != "system":
            units.append(unit)
        called.update((call.id, unit) for call in message.tool_calls)
    newest = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    return [unit for unit in units if newest not in unit and len(messages) - 1 not in unit]


def _begins_well(messages: Sequence[Message], gone: set[int]) -> bool:
    """Many templates want a user's message first."""
    left = (m.role for i, m in enumerate(messages) if i not in gone and m.role != "system")
    return next(left, "user") == "user" or all(m.role != "user" for m in messages)


def _size(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + calls + 16
