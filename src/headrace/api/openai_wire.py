"""Turn events -> what the OpenAI API sends: chunks of a stream, or one whole object. Pure."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator

from headrace.api.call import StreamOptions
from headrace.api.custom_tools import CustomInput
from headrace.api.dialect import Envelope, Json
from headrace.api.reading import Delta, Ended, TurnEvent, Usage
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.types import (
    ChatEvent,
    ChatRequest,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from headrace.engine.request import Logprob


def fingerprint(model: str) -> str:
    """Some clients need one. The model is all that answers depend on besides the request."""
    return f"fp_{hashlib.sha256(model.encode()).hexdigest()[:12]}"


def new_id(prefix: str) -> str:
    """Letters and digits behind the prefix: some clients strip other characters."""
    return f"{prefix}-{uuid.uuid4().hex}"


def usage_json(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


class ChatChunks:
    """`chat.completion.chunk` objects: role, deltas, finish_reason, and the usage if asked for."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._stream = envelope.call.stream or StreamOptions()
        self._id = new_id("chatcmpl")
        self._calls = [CallWriter(custom_names(envelope)) for _ in range(envelope.choices)]

    def first(self) -> Iterator[Json]:
        for i in range(self._envelope.choices):
            delta: Json = {"role": "assistant", "content": "", "refusal": None}
            yield self._chunk([_chunk_choice(i, delta)])

    def ping(self) -> Json:
        """Data that changes nothing: some clients do not count comments as a sign of life."""
        return self._chunk([_chunk_choice(0, {})])

    def next(self, event: TurnEvent, usage: Usage) -> Iterator[Json]:
        if isinstance(event, Ended):
            choices = [_chunk_choice(event.choice, {}, finish=event.reason)]
        else:
            choices = self._deltas(event)
        for choice in choices:
            chunk = self._chunk([choice])
            if self._stream.continuous_usage:
                chunk["usage"] = usage_json(usage)
            yield chunk

    def last(self, usage: Usage) -> Iterator[Json]:
        if self._stream.include_usage:
            yield {**self._chunk([]), "usage": usage_json(usage)}

    def _deltas(self, event: Delta) -> list[Json]:
        calls = self._calls[event.choice]
        choices = [
            _chunk_choice(event.choice, delta)
            for e in event.events
            if (delta := chat_delta(e, calls))
        ]
        if event.logprobs:
            choices = choices or [_chunk_choice(event.choice, {})]
            choices[0]["logprobs"] = chat_logprobs(event.logprobs, self._envelope.tokenizer)
        return choices

    def _chunk(self, choices: list[Json]) -> Json:
        chunk: Json = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": fingerprint(self._envelope.model),
            "choices": choices,
        }
        if self._stream.include_usage:
            chunk["usage"] = None
        return chunk


def _chunk_choice(index: int, delta: Json, *, finish: str | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def custom_names(envelope: Envelope) -> frozenset[str]:
    """The tools whose calls are text."""
    ask = envelope.call.ask
    tools = ask.tools if isinstance(ask, ChatRequest) else ()
    return frozenset(tool.name for tool in tools if tool.input is not None)


class CallWriter:
    """The calls of one choice as the API shows them: of functions, or of custom tools by input."""

    def __init__(self, custom: frozenset[str]) -> None:
        self._custom = custom
        self._inputs: dict[int, CustomInput] = {}

    def begin(self, index: int, call_id: str, name: str) -> Json:
        if name in self._custom:
            self._inputs[index] = CustomInput()
            return {"id": call_id, "type": "custom", "custom": {"name": name, "input": ""}}
        function = {"name": name, "arguments": ""}
        return {"id": call_id, "type": "function", "function": function}

    def more(self, index: int, arguments: str) -> Json | None:
        """What these arguments add."""
        if index not in self._inputs:
            return {"function": {"arguments": arguments}}
        text = self._inputs[index].feed(arguments)
        return {"custom": {"input": text}} if text else None

    def end(self, index: int) -> Json | None:
        text = self._inputs[index].finish() if index in self._inputs else ""
        return {"custom": {"input": text}} if text else None


def chat_delta(event: ChatEvent, calls: CallWriter) -> Json | None:
    said: Json | None = None
    match event:
        case TextDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ToolCallStart(index, call_id, name):
            said = calls.begin(index, call_id, name)
        case ToolCallDelta(index, arguments):
            said = calls.more(index, arguments)
        case ToolCallEnd(index):
            said = calls.end(index)
    return None if said is None else {"tool_calls": [{"index": index, **said}]}


class Answer:
    """One choice's events, gathered for a reply that is not streamed."""

    def __init__(self, custom: frozenset[str] = frozenset()) -> None:
        self.text = ""
        self.reasoning = ""
        self._writer = CallWriter(custom)
        self.calls: list[Json] = []
        self.logprobs: list[Logprob] = []
        self.finish: str | None = None
        self.offsets: list[int] = []  # length of the text before each logprob's token

    def add(self, event: TurnEvent) -> None:
        if isinstance(event, Ended):
            self.finish = event.reason
            return
        self.offsets += [len(self.text)] * len(event.logprobs)
        self.logprobs += event.logprobs
        for piece in event.events:
            match piece:
                case TextDelta(text):
                    self.text += text
                case ReasoningDelta(text):
                    self.reasoning += text
                case ToolCallStart(index, call_id, name):
                    self.calls.append(self._writer.begin(index, call_id, name))
                case ToolCallDelta(index, arguments):
                    self._grow(index, self._writer.more(index, arguments))
                case ToolCallEnd(index):
                    self._grow(index, self._writer.end(index))

    def _grow(self, index: int, said: Json | None) -> None:
        for kind, pieces in (said or {}).items():
            for key, text in pieces.items():
                self.calls[index][kind][key] += text


def chat_completion(envelope: Envelope, answers: list[Answer], usage: Usage) -> Json:
    logprobs = envelope.call.sampling.logprobs is not None
    choices = []
    for i, answer in enumerate(answers):
        message: Json = {
            "role": "assistant",
            "content": None if answer.calls and not answer.text else answer.text,
            "refusal": None,
            "annotations": [],
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = answer.calls
        table = chat_logprobs(answer.logprobs, envelope.tokenizer) if logprobs else None
        choices.append(
            {"index": i, "message": message, "logprobs": table, "finish_reason": answer.finish}
        )
    return {
        "id": new_id("chatcmpl"),
        "object": "chat.completion",
        "created": envelope.created,
        "model": envelope.model,
        "system_fingerprint": fingerprint(envelope.model),
        "choices": choices,
        "usage": usage_json(usage),
    }


def chat_logprobs(logprobs: tuple[Logprob, ...] | list[Logprob], tokenizer: Tokenizer) -> Json:
    def entry(token: int, logprob: float) -> Json:
        raw = tokenizer.token_bytes(token)
        return {
            "token": raw.decode("utf-8", "replace"),
            "bytes": None if token in tokenizer.special_ids else list(raw),
            "logprob": finite(logprob),
        }

    content = [
        {**entry(p.token, p.logprob), "top_logprobs": [entry(*pair) for pair in p.top]}
        for p in logprobs
    ]
    return {"content": content, "refusal": None}


def finite(logprob: float) -> float:
    """JSON has no infinity: an impossible token counts as -9999, as the OpenAI API has it."""
    return max(-9999.0, logprob)  # in this order no number counts so, too


class CompletionChunks:
    """`text_completion` objects of a stream."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._stream = envelope.call.stream or StreamOptions()
        self._id = new_id("cmpl")
        self._offsets = [0] * envelope.choices

    def first(self) -> Iterator[Json]:
        return iter(())

    def ping(self) -> Json:
        return self._chunk([_text_choice(0, "")])

    def next(self, event: TurnEvent, usage: Usage) -> Iterator[Json]:
        if isinstance(event, Ended):
            choice = _text_choice(event.choice, "", finish=event.reason)
        else:
            text = "".join(piece.text for piece in event.events if isinstance(piece, TextDelta))
            choice = _text_choice(event.choice, text)
            if event.logprobs:
                offsets = [self._offsets[event.choice]] * len(event.logprobs)
                choice["logprobs"] = text_logprobs(
                    event.logprobs, offsets, self._envelope.tokenizer
                )
            self._offsets[event.choice] += len(text)
        chunk = self._chunk([choice])
        if self._stream.continuous_usage:
            chunk["usage"] = usage_json(usage)
        yield chunk

    def last(self, usage: Usage) -> Iterator[Json]:
        if self._stream.include_usage:
            yield {**self._chunk([]), "usage": usage_json(usage)}

    def _chunk(self, choices: list[Json]) -> Json:
        chunk: Json = {
            "id": self._id,
            "object": "text_completion",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": fingerprint(self._envelope.model),
            "choices": choices,
        }
        if self._stream.include_usage:
            chunk["usage"] = None
        return chunk


Chunks = ChatChunks | CompletionChunks


def _text_choice(index: int, text: str, *, finish: str | None = None) -> Json:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def completion(envelope: Envelope, answers: list[Answer], usage: Usage) -> Json:
    logprobs = envelope.call.sampling.logprobs is not None
    choices = []
    for i, answer in enumerate(answers):
        choice = _text_choice(i, answer.text, finish=answer.finish)
        if logprobs:
            choice["logprobs"] = text_logprobs(answer.logprobs, answer.offsets, envelope.tokenizer)
        choices.append(choice)
    return {
        "id": new_id("cmpl"),
        "object": "text_completion",
        "created": envelope.created,
        "model": envelope.model,
        "system_fingerprint": fingerprint(envelope.model),
        "choices": choices,
        "usage": usage_json(usage),
    }


def text_logprobs(
    logprobs: tuple[Logprob, ...] | list[Logprob], offsets: list[int], tokenizer: Tokenizer
) -> Json:
    """The older shape: parallel arrays, and a map of the best tokens at each place."""

    def text(token: int) -> str:
        return tokenizer.token_bytes(token).decode("utf-8", "replace")

    return {
        "tokens": [text(p.token) for p in logprobs],
        "token_logprobs": [finite(p.logprob) for p in logprobs],
        "top_logprobs": [{text(t): finite(v) for t, v in reversed(p.top)} for p in logprobs],
        "text_offset": offsets,
    }
