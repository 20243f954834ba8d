"""Output items of the Responses API as they grow: each knows its events, in their order. Pure.

An item's events come without sequence numbers, which the whole stream shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

from headrace.api.custom_tools import CustomInput
from headrace.api.responses_tools import Offered

Json = dict[str, Any]
Status = Literal["completed", "incomplete"]


class Item(Protocol):
    """One output item that is still open."""

    def begin(self) -> Iterator[Json]: ...
    def add(self, text: str, logprobs: list[Json]) -> Iterator[Json]: ...
    def end(self, status: Status) -> Iterator[Json]: ...

    @property
    def item(self) -> Json:
        """As far as it has come."""
        ...


class _Place:
    """Where an item stands: what all of its events name."""

    def __init__(self, id: str, index: int) -> None:
        self.id, self.index = id, index

    def event(self, kind: str, **more: Any) -> Json:
        return {
            "type": f"response.{kind}",
            "item_id": self.id,
            "output_index": self.index,
            **more,
        }

    def whole(self, kind: str, item: Json) -> Json:
        return {"type": f"response.output_item.{kind}", "output_index": self.index, "item": item}


class MessageItem:
    """The text of an answer, as one part."""

    def __init__(self, id: str, index: int) -> None:
        self._place = _Place(id, index)
        self._text: list[str] = []
        self._logprobs: list[Json] = []
        self._status = "in_progress"

    def begin(self) -> Iterator[Json]:
        yield self._place.whole("added", {**self.item, "content": []})
        yield self._place.event("content_part.added", content_index=0, part=self._part())

    def add(self, text: str, logprobs: list[Json]) -> Iterator[Json]:
        self._text.append(text)
        self._logprobs += logprobs
        yield self._place.event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def end(self, status: Status) -> Iterator[Json]:
        self._status = status
        part = self._part()
        yield self._place.event(
            "output_text.done", content_index=0, text=part["text"], logprobs=part["logprobs"]
        )
        yield self._place.event("content_part.done", content_index=0, part=part)
        yield self._place.whole("done", self.item)

    @property
    def item(self) -> Json:
        return {
            "id": self._place.id,
            "type": "message",
            "status": self._status,
            "role": "assistant",
            "content": [self._part()],
        }

    def _part(self) -> Json:
        return {
            "type": "output_text",
            "annotations": [],
            "logprobs": list(self._logprobs),
            "text": "".join(self._text),
        }


class ReasoningItem:
    """Thinking, as the item's content or, where one was asked for, as its summary."""

    def __init__(self, id: str, index: int, *, summary: bool, sealed: str | None) -> None:
        self._place = _Place(id, index)
        self._sealed = sealed
        self._text: list[str] = []
        self._status = "in_progress"
        self._field = "summary" if summary else "content"
        self._kind = "summary_text" if summary else "reasoning_text"
        self._index = {"summary_index" if summary else "content_index": 0}
        self._parts = "reasoning_summary_part" if summary else "content_part"
        self._deltas = "reasoning_summary_text" if summary else "reasoning_text"

    def begin(self) -> Iterator[Json]:
        yield self._place.whole("added", {**self.item, self._field: []})
        yield self._place.event(f"{self._parts}.added", **self._index, part=self._part())

    def add(self, text: str, logprobs: list[Json]) -> Iterator[Json]:
        self._text.append(text)
        yield self._place.event(f"{self._deltas}.delta", **self._index, delta=text)

    def end(self, status: Status) -> Iterator[Json]:
        self._status = status
        part = self._part()
        yield self._place.event(f"{self._deltas}.done", **self._index, text=part["text"])
        yield self._place.event(f"{self._parts}.done", **self._index, part=part)
        yield self._place.whole("done", self.item)

    @property
    def item(self) -> Json:
        item: Json = {
            "id": self._place.id,
            "type": "reasoning",
            "summary": [],
            "content": [],
            "status": self._status,
        }
        item[self._field] = [self._part()]
        if self._sealed is not None:
            item["encrypted_content"] = self._sealed
        return item

    def _part(self) -> Json:
        return {"type": self._kind, "text": "".join(self._text)}


class FunctionItem:
    """A call of a function."""

    def __init__(self, id: str, index: int, call_id: str, tool: Offered) -> None:
        self._place = _Place(id, index)
        self._call_id, self._tool = call_id, tool
        self._arguments: list[str] = []
        self._status = "in_progress"

    def begin(self) -> Iterator[Json]:
        yield self._place.whole("added", self.item)

    def add(self, text: str, logprobs: list[Json]) -> Iterator[Json]:
        self._arguments.append(text)
        yield self._place.event("function_call_arguments.delta", delta=text)

    def end(self, status: Status) -> Iterator[Json]:
        self._status = status
        item = self.item
        yield self._place.event(
            "function_call_arguments.done", name=item["name"], arguments=item["arguments"]
        )
        yield self._place.whole("done", item)

    @property
    def item(self) -> Json:
        item: Json = {
            "id": self._place.id,
            "type": "function_call",
            "status": self._status,
            "arguments": "".join(self._arguments),
            "call_id": self._call_id,
            "name": self._tool.name,
        }
        return item | _space(self._tool)


class CustomItem:
    """A call of a custom tool: the one string among its arguments is its input."""

    def __init__(self, id: str, index: int, call_id: str, tool: Offered) -> None:
        self._place = _Place(id, index)
        self._call_id, self._tool = call_id, tool
        self._input = CustomInput()
        self._text: list[str] = []
        self._status = "in_progress"

    def begin(self) -> Iterator[Json]:
        yield self._place.whole("added", self.item)

    def add(self, text: str, logprobs: list[Json]) -> Iterator[Json]:
        yield from self._grow(self._input.feed(text))

    def end(self, status: Status) -> Iterator[Json]:
        self._status = status
        yield from self._grow(self._input.finish())
        item = self.item
        yield self._place.event("custom_tool_call_input.done", input=item["input"])
        yield self._place.whole("done", item)

    def _grow(self, text: str) -> Iterator[Json]:
        if text:
            self._text.append(text)
            yield self._place.event("custom_tool_call_input.delta", delta=text)

    @property
    def item(self) -> Json:
        item: Json = {
            "id": self._place.id,
            "type": "custom_tool_call",
            "status": self._status,
            "call_id": self._call_id,
            "input": "".join(self._text),
            "name": self._tool.name,
        }
        return item | _space(self._tool)


def _space(tool: Offered) -> Json:
    return {} if tool.namespace is None else {"namespace": tool.namespace}
