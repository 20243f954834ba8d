"""Turn events -> Anthropic's message events, or the one message they add up to.

Blocks follow each other by index: one is open at a time, and each that started stops. A whole reply
is folded from the very events a stream would have carried.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator, Sequence

from headrace.api.anthropic import MessageCall, parse_message
from headrace.api.anthropic_errors import anthropic_error
from headrace.api.dialect import Dialect, Envelope, Json
from headrace.api.reading import Ended, TurnEvent, Usage
from headrace.api.sse import frame
from headrace.chat.depth import MAX_LEVELS, height
from headrace.chat.types import (
    ChatEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from headrace.errors import HeadraceError

PING = frame({"type": "ping"}, event="ping")
DIRECT = {"type": "direct"}  # no other tool's code called it
NAMES = (
    (re.compile(r"messages\[.*"), "messages"),
    (re.compile(r"tools\[\d+\]\.function\.parameters"), "tools"),
    (re.compile(r"response_format\b"), "output_config.format"),
    (re.compile(r"stop\b"), "stop_sequences"),
)
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def usage_json(usage: Usage) -> Json:
    """`input_tokens` are those of the prompt that had to be computed."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        "server_tool_use": None,
    }


class MessageEncoder:
    """One reply. It starts with the first token, as only then it is known what was cached."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        assert isinstance(envelope.call, MessageCall)
        self._wishes = envelope.call.wishes
        self._started = False
        self._ended: Ended | None = None
        self._index = -1
        self._open: str | None = None  # kind of the block that is open

    def first(self, usage: Usage) -> Iterator[bytes]:
        return iter(())

    def next(self, event: TurnEvent, usage: Usage) -> Iterator[bytes]:
        return map(_frame, self._next(event, usage))

    def last(self, usage: Usage) -> Iterator[bytes]:
        return map(_frame, self._last(usage))

    def failed(self, error: HeadraceError, usage: Usage) -> Iterator[bytes]:
        yield _frame(anthropic_error(error))

    def ping(self) -> bytes:
        return PING

    def whole(self, events: Sequence[TurnEvent], usage: Usage) -> Json:
        message: Json = {}
        for event in events:
            for data in self._next(event, usage):
                _fold(message, data)
        for data in self._last(usage):
            _fold(message, data)
        return message

    def _next(self, event: TurnEvent, usage: Usage) -> Iterator[Json]:
        if not self._started:
            self._started = True
            yield {"type": "message_start", "message": self._message(usage)}
        if isinstance(event, Ended):
            yield from self._close()
            self._ended = event
            return
        for piece in event.events:
            yield from self._piece(piece)

    def _last(self, usage: Usage) -> Iterator[Json]:
        ended = self._ended
        assert ended is not None
        reason = "stop_sequence" if ended.stop_text is not None else REASONS[ended.reason]
        data: Json = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": ended.stop_text},
            "usage": usage_json(usage),
        }
        if self._wishes.edits is not None:
            data["context_management"] = {"applied_edits": list(self._wishes.edits)}
        yield data
        yield {"type": "message_stop"}

    def _message(self, usage: Usage) -> Json:
        cached: Json = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
        more: Json = {"cache_creation": cached, "service_tier": "standard", "inference_geo": None}
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self._envelope.model,
            "content": [],
            "container": None,
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": usage_json(usage) | more,
        }

    def _piece(self, piece: ChatEvent) -> Iterator[Json]:
        match piece:
            case TextDelta(text) if text:
                if self._open != "text":
                    yield from self._start({"type": "text", "text": "", "citations": None})
                yield self._delta({"type": "text_delta", "text": text})
            case ReasoningDelta(text) if text:
                if self._open != "thinking":
                    yield from self._start({"type": "thinking", "thinking": "", "signature": ""})
                if not self._wishes.hide_thinking:
                    yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolCallStart(_, call_id, name):
                yield from self._start(
                    {"type": "tool_use", "id": call_id, "name": name, "input": {}, "caller": DIRECT}
                )
            case ToolCallDelta(_, arguments) if arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": arguments})
            case ToolCallEnd():
                yield from self._close()

    def _start(self, block: Json) -> Iterator[Json]:
        yield from self._close()
        self._index += 1
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> Iterator[Json]:
        if self._open is None:
            return
        if self._open == "thinking":
            handle = self._envelope.handles[0]
            yield self._delta({"type": "signature_delta", "signature": handle})
        self._open = None
        yield {"type": "content_block_stop", "index": self._index}


def _frame(data: Json) -> bytes:
    return frame(data, event=data["type"])


def _fold(message: Json, data: Json) -> None:
    """Adds one event to the message it belongs to."""
    kind = data["type"]
    if kind == "message_start":
        message.update(data["message"])
    elif kind == "content_block_start":
        message["content"].append(dict(data["content_block"]))
    elif kind == "content_block_delta":
        block, delta = message["content"][-1], data["delta"]
        if delta["type"] == "input_json_delta":
            block["input"] = (block["input"] or "") + delta["partial_json"]
        else:
            name = delta["type"].removesuffix("_delta")
            block[name] += delta[name]
    elif kind == "content_block_stop":
        block = message["content"][-1]
        if block["type"] == "tool_use":
            block["input"] = _arguments(block["input"])
    elif kind == "message_delta":
        message.update(data["delta"])
        message["usage"] |= data["usage"]
        if "context_management" in data:
            message["context_management"] = data["context_management"]


def _arguments(text: str | Json) -> Json:
    """Of a call that was cut off, or that is no JSON, nothing certain is known; of one that is too
    deep to be written again nothing is said."""
    if not isinstance(text, str):
        return text
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and height(value) <= MAX_LEVELS else {}


def _finite(text: str) -> float:
    """A number beyond all floats is the largest: the reply's JSON has no infinity."""
    most = sys.float_info.max
    return min(max(float(text), -most), most)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def rename(field: str) -> str:
    """Of an error found after parsing. Places in the neutral conversation are not the client's."""
    for pattern, name in NAMES:
        if pattern.match(field):
            return pattern.sub(name, field, count=1)
    return field


MESSAGES = Dialect("messages", parse_message, MessageEncoder, rename)
