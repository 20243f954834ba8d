"""What a request and its events look like in each dialect; sessions are kept in the chat shape.

A message has one field more than chat knows: `signature`, by which its server finds thinking again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """What one streamed answer said and counted so far."""

    text: str = ""
    thinking: str = ""
    signature: str = ""
    calls: list[Json] = field(default_factory=list)  # id, name, arguments as text
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    error: str = ""

    def message(self) -> Json:
        """As a client keeps it."""
        said: Json = {"role": "assistant", "content": self.text}
        if self.thinking:
            said["reasoning_content"] = self.thinking
        if self.signature:
            said["signature"] = self.signature
        if self.calls:
            said["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in self.calls
            ]
        return said


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where to ask, how, and how an event changes the answer: True where something was said."""

    path: str
    body: Callable[[Sequence[Json], Sequence[Json], int], Json]  # messages, tools, max_tokens
    take: Callable[[Answer, Json], bool]


def _chat_body(messages: Sequence[Json], tools: Sequence[Json], max_tokens: int) -> Json:
    plain = [{k: v for k, v in m.items() if k != "signature"} for m in messages]
    return {
        "messages": plain,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"tools": list(tools)} if tools else {}),
    }


def _take_chat(answer: Answer, event: Json) -> bool:
    usage = event.get("usage")
    if usage:
        details = usage.get("prompt_tokens_details") or {}
        answer.prompt, answer.completion = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached = details.get("cached_tokens") or 0
    said = False
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        text = delta.get("content") or choice.get("text") or ""
        thinking = delta.get("reasoning_content") or delta.get("reasoning") or ""
        answer.text += text
        answer.thinking += thinking
        for part in delta.get("tool_calls") or ():
            _call_part(answer, part)
        said = said or bool(text or thinking or delta.get("tool_calls"))
    return said


def _call_part(answer: Answer, part: Json) -> None:
    function = part.get("function") or {}
    if part.get("id"):
        answer.calls.append({"id": part["id"], "name": function.get("name", ""), "arguments": ""})
    if answer.calls:
        answer.calls[-1]["arguments"] += function.get("arguments") or ""


def _messages_body(messages: Sequence[Json], tools: Sequence[Json], max_tokens: int) -> Json:
    first = 0
    while first < len(messages) and messages[first]["role"] == "system":
        first += 1
    functions = [tool["function"] for tool in tools]
    body: Json = {
        "messages": [_anthropic(message) for message in messages[first:]],
        "max_tokens": max_tokens,
        "stream": True,
    }
    if first:
        body["system"] = [{"type": "text", "text": m["content"]} for m in messages[:first]]
    if functions:
        body["tools"] = [
            {"name": f["name"], "description": f.get("description", ""), "input_schema": _schema(f)}
            for f in functions
        ]
    return body


def _schema(function: Mapping[str, Any]) -> Json:
    found: Json = function.get("parameters") or {"type": "object", "properties": {}}
    return found


def _anthropic(message: Json) -> Json:
    if message["role"] == "tool":
        content = message["content"]
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
        return {"role": "user", "content": [result]}
    if message["role"] != "assistant":
        return {"role": message["role"], "content": message["content"]}
    blocks: list[Json] = []
    if message.get("signature"):
        thought = message.get("reasoning_content", "")
        blocks.append({"type": "thinking", "thinking": thought, "signature": message["signature"]})
    if message.get("content"):
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        given = json.loads(function["arguments"] or "{}")
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        )
    return {"role": "assistant", "content": blocks or "."}


def _take_messages(answer: Answer, event: Json) -> bool:
    kind = event.get("type")
    usage = event.get("usage") or (event.get("message") or {}).get("usage")
    if usage:
        cached = usage.get("cache_read_input_tokens") or 0
        fresh = usage.get("input_tokens") or 0
        if fresh or cached:
            made = usage.get("cache_creation_input_tokens") or 0
            answer.prompt, answer.cached = fresh + cached + made, cached
        answer.completion = usage.get("output_tokens") or 0
    if kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
        block = event["content_block"]
        answer.calls.append({"id": block["id"], "name": block["name"], "arguments": ""})
        return True
    if kind != "content_block_delta":
        return False
    delta = event["delta"]
    answer.text += delta.get("text", "")
    answer.thinking += delta.get("thinking", "")
    answer.signature += delta.get("signature", "")
    if answer.calls:
        answer.calls[-1]["arguments"] += delta.get("partial_json", "")
    return True


def _responses_body(messages: Sequence[Json], tools: Sequence[Json], max_tokens: int) -> Json:
    body: Json = {
        "input": [item for message in messages for item in _items(message)],
        "max_output_tokens": max_tokens,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    if tools:
        body["tools"] = [
            {"type": "function", "strict": False, "name": f["name"], "parameters": _schema(f)}
            for f in (tool["function"] for tool in tools)
        ]
    return body


def _items(message: Json) -> Iterator[Json]:
    role, text = message["role"], message.get("content")
    if role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message["tool_call_id"],
            "output": text,
        }
        return
    if message.get("signature"):
        thought = message.get("reasoning_content", "")
        content = [{"type": "reasoning_text", "text": thought}] if thought else []
        yield {
            "type": "reasoning",
            "summary": [],
            "content": content,
            "encrypted_content": message["signature"],
        }
    if text:
        kind = "output_text" if role == "assistant" else "input_text"
        parts = [{"type": kind, "text": text}]
        yield {"type": "message", "role": role, "content": parts}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield {
            "type": "function_call",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"],
        }


def _take_responses(answer: Answer, event: Json) -> bool:
    kind = event.get("type", "")
    if kind in ("response.completed", "response.incomplete", "response.failed"):
        response = event["response"]
        usage = response.get("usage") or {}
        answer.prompt = usage.get("input_tokens", 0)
        answer.cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
        answer.completion = usage.get("output_tokens", 0)
        if response.get("error"):
            answer.error = str(response["error"])[:500]
        return False
    item = event.get("item") or {}
    if kind == "response.output_item.added" and item.get("type") == "function_call":
        answer.calls.append({"id": item["call_id"], "name": item["name"], "arguments": ""})
        return True
    if kind == "response.output_item.done" and item.get("encrypted_content"):
        answer.signature = item["encrypted_content"]
    if not kind.endswith(".delta"):
        return False
    said, what = event.get("delta", ""), kind.removesuffix(".delta").rpartition(".")[2]
    if what == "output_text":
        answer.text += said
    elif what in ("reasoning_text", "reasoning_summary_text"):
        answer.thinking += said
    elif what == "function_call_arguments" and answer.calls:
        answer.calls[-1]["arguments"] += said
    return True


DIALECTS: Mapping[str, Dialect] = {
    "chat": Dialect("/v1/chat/completions", _chat_body, _take_chat),
    "messages": Dialect("/v1/messages", _messages_body, _take_messages),
    "responses": Dialect("/v1/responses", _responses_body, _take_responses),
}
