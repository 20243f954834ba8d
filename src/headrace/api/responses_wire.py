"""Turn events -> what the Responses API sends: numbered events, or one whole object."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.api.dialect import Envelope
from headrace.api.errors import error_body
from headrace.api.openai_wire import chat_logprobs
from headrace.api.reading import Delta, Ended, TurnEvent, Usage
from headrace.api.responses import ResponsesCall
from headrace.api.responses_parts import (
    CustomItem,
    FunctionItem,
    Item,
    MessageItem,
    ReasoningItem,
    Status,
)
from headrace.api.responses_store import ResponseStore
from headrace.api.responses_tools import Offered
from headrace.api.sse import frame
from headrace.chat.types import (
    ChatEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from headrace.errors import HeadraceError

Json = dict[str, Any]
# What the API calls the errors that end a response; others have the code of a refused request.
FAILURES = {429: "rate_limit_exceeded", 500: "server_error", 503: "server_error"}


def usage_json(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


class Output:
    """The items of one response; one is open at a time. Gives their events, without numbers."""

    def __init__(
        self, handle: str, tools: dict[str, Offered], *, summary: bool, encrypted: bool
    ) -> None:
        self._handle, self._tools = handle, tools
        self._summary, self._encrypted = summary, encrypted
        self.done: list[Json] = []
        self._open: Item | None = None

    @property
    def items(self) -> list[Json]:
        return self.done if self._open is None else [*self.done, self._open.item]

    def add(self, events: Sequence[ChatEvent], logprobs: list[Json]) -> Iterator[Json]:
        for event in events:
            match event:
                case TextDelta(text):
                    yield from self._into(MessageItem, self._message)
                    yield from self._more(text, logprobs)
                    logprobs = []
                case ReasoningDelta(text):
                    yield from self._into(ReasoningItem, self._thinking)
                    yield from self._more(text, [])
                case ToolCallStart(_, call_id, name):
                    yield from self.close("completed")
                    yield from self._begin(self._call(call_id, name))
                case ToolCallDelta(_, arguments):
                    yield from self._more(arguments, [])
                case ToolCallEnd(_, cut):
                    yield from self.close("incomplete" if cut else "completed")

    def close(self, status: Status) -> Iterator[Json]:
        if self._open is not None:
            yield from self._open.end(status)
            self.done.append(self._open.item)
            self._open = None

    def _into(self, kind: type[Item], make: Callable[[], Item]) -> Iterator[Json]:
        if not isinstance(self._open, kind):
            yield from self.close("completed")
            yield from self._begin(make())

    def _begin(self, item: Item) -> Iterator[Json]:
        self._open = item
        yield from item.begin()

    def _more(self, text: str, logprobs: list[Json]) -> Iterator[Json]:
        if self._open is not None and text:
            yield from self._open.add(text, logprobs)

    def _id(self, prefix: str) -> str:
        """Names the answer and the item's place in it."""
        return f"{prefix}_{self._handle}{len(self.done):02x}"

    def _message(self) -> Item:
        return MessageItem(self._id("msg"), len(self.done))

    def _thinking(self) -> Item:
        sealed = f"hr{self._handle}" if self._encrypted else None
        return ReasoningItem(self._id("rs"), len(self.done), summary=self._summary, sealed=sealed)

    def _call(self, call_id: str, name: str) -> Item:
        tool = self._tools.get(name) or Offered("function", name, None, name)
        if tool.kind == "custom":
            return CustomItem(self._id("ctc"), len(self.done), call_id, tool)
        return FunctionItem(self._id("fc"), len(self.done), call_id, tool)


class ResponseEncoder:
    """One reply; a finished response goes to the store unless the client said otherwise."""

    def __init__(self, envelope: Envelope, store: ResponseStore) -> None:
        assert isinstance(envelope.call, ResponsesCall)
        wish = envelope.call.wish
        self._envelope, self._wish, self._store = envelope, wish, store
        handle = envelope.handles[0]
        self._id = f"resp_{handle}"
        self._output = Output(handle, wish.tools, summary=wish.summary, encrypted=wish.encrypted)
        self._count = 0
        self._cut = False  # the answer ended before its own end

    def first(self, usage: Usage) -> Iterator[bytes]:
        for kind in ("created", "in_progress"):
            yield self._frame(self._event(kind, self._response("in_progress")))

    def next(self, event: TurnEvent, usage: Usage) -> Iterator[bytes]:
        return map(self._frame, self._next(event))

    def last(self, usage: Usage) -> Iterator[bytes]:
        response = self._finished(usage)
        yield self._frame(self._event(response["status"], response))

    def failed(self, error: HeadraceError, usage: Usage) -> Iterator[bytes]:
        # The open item is not ended: clients act on items that are done.
        said = error_body(error)["error"]
        code = FAILURES.get(error.http_status) or said["code"] or "server_error"
        response = self._response("failed", usage) | {
            "error": {"code": code, "message": said["message"]},
            "output": self._output.done,
        }
        yield self._frame(self._event("failed", response))

    def ping(self) -> bytes:
        return self._frame(self._event("in_progress", self._response("in_progress")))

    def whole(self, events: Sequence[TurnEvent], usage: Usage) -> Json:
        for event in events:
            for _ in self._next(event):
                pass
        return self._finished(usage)

    def _next(self, event: TurnEvent) -> Iterator[Json]:
        if isinstance(event, Ended):
            self._cut = event.reason == "length"
            yield from self._output.close("incomplete" if self._cut else "completed")
        else:
            yield from self._output.add(event.events, self._logprobs(event))

    def _logprobs(self, event: Delta) -> list[Json]:
        if not self._wish.logprobs:
            return []
        table: list[Json] = chat_logprobs(event.logprobs, self._envelope.tokenizer)["content"]
        for entry in table:
            for one in (entry, *entry["top_logprobs"]):
                one["bytes"] = one["bytes"] or []
        return table

    def _finished(self, usage: Usage) -> Json:
        response = self._response("incomplete" if self._cut else "completed", usage)
        response["completed_at"] = None if self._cut else int(time.time())
        if self._cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._wish.store:
            self._store.put(response, self._wish.items, self._wish.previous)
        return response

    def _response(self, status: str, usage: Usage | None = None) -> Json:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._envelope.created,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._envelope.model,
            "output": list(self._output.items),
            "max_tool_calls": None,
            "service_tier": "default",
            "usage": None if usage is None else usage_json(usage),
            **self._wish.echo,
        }

    def _event(self, kind: str, response: Json) -> Json:
        return {"type": f"response.{kind}", "response": response}

    def _frame(self, event: Json) -> bytes:
        """With the next number of the stream."""
        kind = event["type"]
        numbered = {"type": kind, "sequence_number": self._count, **event}
        self._count += 1
        return frame(numbered, event=kind)
