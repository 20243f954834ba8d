"""Bodies of `/v1/responses` -> Call: honoured, known to change nothing, or refused by name."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass, field
from typing import Any

from headrace.api.call import Call, StreamOptions
from headrace.api.errors import PreviousNotFound
from headrace.api.fields import Fields, shown
from headrace.api.openai import EFFORTS, read_thinking
from headrace.api.responses_items import Find, Transcript, read_items
from headrace.api.responses_store import Record, ResponseStore
from headrace.api.responses_tools import Offered, Toolbox
from headrace.api.sampling import MAX_TOKENS, MAX_TOP_LOGPROBS, read_sampling, read_stop
from headrace.chat.types import ChatRequest, Message, OutputFormat
from headrace.engine.request import Sampling

Json = dict[str, Any]
SUMMARIES = ("auto", "concise", "detailed")
INCLUDE = (
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    # Of hosted tools and images, which no answer here has.
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
HARMLESS = (
    *("prompt_cache_retention", "prompt_cache_options", "client_metadata", "max_tool_calls"),
    *("access_programs", "background_options", "image"),
)
VERBOSITY = {"low": "Answer as briefly as you can.", "high": "Answer at length and in detail."}


@dataclass(frozen=True, slots=True)
class Wish:
    """What the reply shows of its request, and how it shows the answer."""

    echo: Json = field(default_factory=dict)
    tools: dict[str, Offered] = field(default_factory=dict)
    summary: bool = False  # reasoning as a summary; else as the content of its item
    encrypted: bool = False  # reasoning carries its handle as encrypted content
    logprobs: bool = False
    store: bool = True
    previous: Record | None = None  # what this one follows
    items: tuple[Json, ...] = ()  # items of this request


@dataclass(frozen=True, slots=True)
class ResponsesCall(Call):
    wish: Wish = field(default_factory=Wish)


def parse_response(body: Fields, defaults: Sampling, store: ResponseStore) -> ResponsesCall:
    """Raises RequestError naming the first field that is wrong."""
    model, stream = body.text("model"), _stream(body)
    sampling = _sampling(body, defaults)
    ask, wish = parse_ask(body, store)
    echo = {
        **wish.echo,
        "max_output_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "top_logprobs": sampling.logprobs or 0,
        **_labels(body),
    }
    include = _include(body)
    logprobs = sampling.logprobs is not None or "message.output_text.logprobs" in include
    if logprobs and sampling.logprobs is None:
        sampling = dataclasses.replace(sampling, logprobs=0)
    stored = body.flag("store")
    _refuse_unsupported(body)
    body.done()
    wish = dataclasses.replace(
        wish,
        echo={**echo, "store": stored is not False},
        encrypted="reasoning.encrypted_content" in include,
        logprobs=logprobs,
        store=stored is not False,
    )
    return ResponsesCall(ask=ask, sampling=sampling, model=model, stream=stream, wish=wish)


def parse_ask(body: Fields, store: ResponseStore) -> tuple[ChatRequest, Wish]:
    """The part of a body that becomes the prompt and shapes the answer."""
    box = Toolbox()
    for entry in body.children("tools") or []:
        box.add(entry)
    previous = _previous(body, store)
    messages, items = _input(body, previous, box, store.item)
    choice, shown_choice = box.choice(body)
    form, shown_text, verbosity = _text(body)
    instructions = body.text("instructions")
    lead = "\n\n".join(t for t in (instructions, VERBOSITY.get(verbosity)) if t)
    effort, summary, shown_reasoning = _reasoning(body)
    thinking, template_args = read_thinking(body, effort)
    parallel = body.flag("parallel_tool_calls")
    truncation = body.choice("truncation", ("auto", "disabled")) or "disabled"
    ask = ChatRequest(
        messages=(Message("system", lead), *messages) if lead else messages,
        tools=tuple(box.tools),
        tool_choice=choice,
        parallel_tool_calls=parallel is not False,
        format=form,
        thinking=thinking,
        effort="max" if effort == "xhigh" else effort,  # type: ignore[arg-type]
        stop=read_stop(body),
        template_args=template_args,
        truncate=truncation == "auto",
    )
    echo: Json = {
        "instructions": instructions,
        "tools": box.echo,
        "tool_choice": shown_choice,
        "text": shown_text,
        "reasoning": shown_reasoning,
        "parallel_tool_calls": parallel is not False,
        "previous_response_id": previous.id if previous else None,
        "truncation": truncation,
    }
    return ask, Wish(echo, box.offered, summary=summary, previous=previous, items=items)


def _previous(body: Fields, store: ResponseStore) -> Record | None:
    id = body.text("previous_response_id")
    if id is None:
        return None
    record = store.get(id)
    if record is None:
        raise PreviousNotFound(
            f"previous response with id {shown(id)} not found",
            field="previous_response_id",
            expected="a response that was stored and is still kept",
            fix="send the whole conversation as input",
        )
    return record


def _input(
    body: Fields, previous: Record | None, box: Toolbox, find: Find
) -> tuple[tuple[Message, ...], tuple[Json, ...]]:
    value = body.take("input")
    if isinstance(value, str):
        value = [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list) or not (value or previous):
        found = "missing" if value is None else "empty" if value == [] else f"found {shown(value)}"
        raise body.fault("input", found, expected="a string or at least one item")
    transcript = Transcript(find)
    read_items(previous.all_items if previous else (), "previous_response_id", transcript)
    read_items(value, body.path("input"), transcript)
    for entry in transcript.tools:
        box.add(entry)
    messages = transcript.messages
    if not messages:
        raise body.fault("input", "holds no text", expected="at least one message")
    return messages, tuple(stored_item(item, find) for item in value)


def stored_item(item: Json, find: Find) -> Json:
    """An input item in the full shape in which it is listed, with an id."""
    kind = item.get("type") or ("message" if item.get("role") else "item_reference")
    if kind == "item_reference":
        found = find(item["id"])
        assert found is not None  # it was read
        return found
    full = {**item, "type": kind}
    if not (full.get("id") and isinstance(full["id"], str)):
        full["id"] = f"{'msg' if kind == 'message' else 'item'}_{secrets.token_hex(12)}"
    if kind == "message":
        part = "output_text" if item["role"] == "assistant" else "input_text"
        if isinstance(item["content"], str):
            content: Json = {"type": part, "text": item["content"]}
            if part == "output_text":
                content |= {"annotations": [], "logprobs": []}
            full["content"] = [content]
        full.setdefault("status", "completed")
    return full


def _stream(body: Fields) -> StreamOptions | None:
    streaming = body.flag("stream") or False
    options = body.child("stream_options")
    if options is not None:
        if not streaming:
            raise body.fault("stream_options", "given without streaming", expected='"stream": true')
        # Padding against eavesdroppers that count bytes; a default that may be switched off.
        options.flag("include_obfuscation")
        options.done()
    return StreamOptions() if streaming else None


def _sampling(body: Fields, defaults: Sampling) -> Sampling:
    max_tokens = body.whole("max_output_tokens", 1, MAX_TOKENS)
    sampling = dataclasses.replace(
        read_sampling(body, defaults),
        max_tokens=max_tokens,
        logprobs=body.whole("top_logprobs", 0, MAX_TOP_LOGPROBS) or None,
    )
    if max_tokens is not None and sampling.min_tokens > max_tokens:
        raise body.fault(
            "min_tokens",
            f"found {sampling.min_tokens}",
            expected=f"at most max_output_tokens = {max_tokens}",
        )
    return sampling


def _text(body: Fields) -> tuple[OutputFormat, Json, str]:
    """`text`: the format of the answer, its echo, and the verbosity."""
    entry = body.child("text")
    if entry is None:
        return OutputFormat(), {"format": {"type": "text"}, "verbosity": "medium"}, "medium"
    verbosity = entry.choice("verbosity", ("low", "medium", "high")) or "medium"
    wanted = entry.child("format")
    entry.done()
    form, shape = (OutputFormat(), {"type": "text"}) if wanted is None else _format(wanted)
    return form, {"format": shape, "verbosity": verbosity}, verbosity


def _format(entry: Fields) -> tuple[OutputFormat, Json]:
    kind = entry.choice("type", ("text", "json_object", "json_schema", "regex", "lark"))
    if kind is None:
        raise entry.fault("type", "missing", expected="text, json_object or json_schema")
    form = OutputFormat(kind=kind)  # type: ignore[arg-type]
    shape: Json = {"type": kind}
    if kind == "json_schema":
        schema = entry.mapping("schema")
        if schema is None:
            raise entry.fault("schema", "missing", expected="a JSON schema")
        shape |= {
            "name": entry.text("name") or "answer",
            "description": entry.text("description"),
            "schema": schema,
            "strict": entry.flag("strict") is not False,  # the grammar always enforces the schema
        }
        form = dataclasses.replace(form, schema=schema)
    elif kind in ("regex", "lark"):
        shape["pattern"] = entry.required_text("pattern")
        form = dataclasses.replace(form, pattern=shape["pattern"])
    entry.done()
    return form, shape


def _reasoning(body: Fields) -> tuple[str | None, bool, Json]:
    """`reasoning`: the effort, whether a summary is asked for, and its echo."""
    entry = body.child("reasoning")
    if entry is None:
        return None, False, {"effort": None, "summary": None}
    effort = entry.choice("effort", EFFORTS)
    summary = entry.choice("summary", SUMMARIES)
    summary = entry.choice("generate_summary", SUMMARIES) or summary
    entry.refuse("context", "leave it out", unless=lambda v: v == "auto")
    entry.refuse("mode", "leave it out", unless=lambda v: v == "standard")
    entry.done()
    return effort, summary is not None, {"effort": effort, "summary": summary}


def _include(body: Fields) -> frozenset[str]:
    values = body.items("include") or []
    for value in values:
        if value not in INCLUDE:
            raise body.fault("include", f"found {shown(value)}", expected=", ".join(INCLUDE[:2]))
    return frozenset(values)


def _labels(body: Fields) -> Json:
    """Fields that the reply repeats and nothing else reads."""
    metadata = body.mapping("metadata") or {}
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise body.fault("metadata", f"{shown(key)} is {shown(value)}", expected="strings")
    tiers = ("auto", "default", "flex", "fast", "priority", "scale")
    body.choice("service_tier", tiers)
    return {
        "metadata": metadata,
        "prompt_cache_key": body.text("prompt_cache_key"),
        "safety_identifier": body.text("safety_identifier"),
        "user": body.text("user"),
    }


def _refuse_unsupported(body: Fields) -> None:
    body.harmless(*HARMLESS)
    body.refuse("background", "read the answer as a stream", unless=lambda v: v is False)
    body.refuse("conversation", "send previous_response_id, or the whole conversation as input")
    body.refuse("prompt", "there are no stored prompts: send its text")
    body.refuse("context_management", "nothing is compacted here", unless=lambda v: v == [])
    body.refuse("moderation", "answers are not moderated")
