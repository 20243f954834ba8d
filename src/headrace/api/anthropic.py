"""Anthropic Messages bodies -> Call: a field is honoured, known to change nothing, or refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.api.anthropic_blocks import parse_messages, parse_system
from headrace.api.anthropic_edits import edited, parse_edits
from headrace.api.anthropic_tools import parse_choice, parse_tools
from headrace.api.call import Call, StreamOptions
from headrace.api.fields import Fields, shown
from headrace.api.sampling import MAX_STOPS, MAX_TOKENS, read_sampling
from headrace.chat.types import ChatRequest, OutputFormat
from headrace.engine.request import Sampling

Thinks = Literal["enabled", "disabled", "adaptive", "between_tools"]
EFFORTS = ("low", "medium", "high", "xhigh", "max")
# Who is served, at what price and how its cache is kept: the answer is the same.
HARMLESS = (
    *("metadata", "service_tier", "cache_control", "inference_geo", "diagnostics", "speed"),
    *("user_profile_id", "workspace_id", "billing_policy", "fallbacks", "fallback_credit_token"),
    *("anthropic_version", "anthropic_beta"),
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the reply must know of the request."""

    hide_thinking: bool = False  # signatures only
    # The edits of the context that were made; None where none were asked for.
    edits: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class MessageCall(Call):
    wishes: Wishes = field(default_factory=Wishes)


def parse_message(body: Fields, defaults: Sampling) -> MessageCall:
    """Of `/v1/messages`. Raises RequestError naming the first field that is wrong."""
    model = body.text("model")
    stream = body.flag("stream") or False
    max_tokens = body.whole("max_tokens", 1, MAX_TOKENS)
    if max_tokens is None:
        raise body.fault("max_tokens", "missing", expected="a whole number")
    sampling = dataclasses.replace(read_sampling(body, defaults), max_tokens=max_tokens)
    ask, wishes = _ask(body)
    body.done()
    return MessageCall(
        ask=ask,
        sampling=sampling,
        model=model,
        stream=StreamOptions() if stream else None,
        wishes=wishes,
    )


def parse_count(body: Fields) -> ChatRequest:
    """Of `/v1/messages/count_tokens`; what does not reach the prompt is taken as well."""
    body.harmless("model", "max_tokens", "stream", "temperature", "top_p", "top_k")
    ask, _ = _ask(body)
    body.done()
    return ask


def _ask(body: Fields) -> tuple[ChatRequest, Wishes]:
    offered = parse_tools(body)
    system = parse_system(body)
    talk = parse_messages(body, offered.describe)
    choice, parallel = parse_choice(body, offered.tools)
    if choice.name is not None:
        talk.loaded.add(choice.name)
    thinks, budget, hidden = _thinking(body)
    effort, output = _output(body)
    last = talk.messages[-1]
    if last.tool_calls:
        raise body.fault(
            "messages", "the last one calls tools", expected="a user message with their results"
        )
    args = body.mapping("chat_template_kwargs") or {}
    edits = parse_edits(body)
    messages, applied = edited(talk.messages, edits or ())
    body.refuse("container", "nothing is run here")
    body.refuse("mcp_servers", "no server is called from here", unless=lambda v: v == [])
    ask = ChatRequest(
        messages=(*system, *messages),
        tools=offered.known(talk.loaded),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        format=output,
        thinking=None if thinks is None else thinks != "disabled",
        effort=effort,  # type: ignore[arg-type]
        thinking_budget=budget,
        stop=_stops(body),
        template_args=args,
        continue_last=last.role == "assistant",
    )
    body.harmless(*HARMLESS)
    return ask, Wishes(hidden, None if edits is None else applied)


def _stops(body: Fields) -> tuple[str, ...]:
    stops = body.items("stop_sequences") or []
    if len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise body.fault(
            "stop_sequences",
            f"found {shown(stops)}",
            expected=f"at most {MAX_STOPS} strings, none empty",
        )
    return tuple(stops)


def _thinking(body: Fields) -> tuple[Thinks | None, int | None, bool]:
    """How to think, with how many tokens at most, and whether its text stays hidden."""
    entry = body.child("thinking")
    if entry is None:
        return None, None, False
    kind = entry.choice("type", ("enabled", "disabled", "adaptive", "between_tools"))
    if kind is None:
        raise entry.fault("type", "missing", expected="enabled, disabled or adaptive")
    budget = entry.whole("budget_tokens", 1, MAX_TOKENS)
    display = entry.choice("display", ("summarized", "omitted", "updates"))
    entry.harmless("block_binding").done()
    return kind, budget, display == "omitted"  # type: ignore[return-value]


def _output(body: Fields) -> tuple[str | None, OutputFormat]:
    """`output_config`, and the older `output_format` beside it."""
    effort, shape = None, body.child("output_format")
    config = body.child("output_config")
    if config is not None:
        effort = config.choice("effort", EFFORTS)
        inner = config.child("format")
        if inner is not None and shape is not None:
            raise body.fault("output_format", "given twice", fix="send output_config.format alone")
        shape = inner or shape
        config.harmless("task_budget").done()
    return "max" if effort == "xhigh" else effort, _format(shape)


def _format(entry: Fields | None) -> OutputFormat:
    if entry is None:
        return OutputFormat()
    if entry.choice("type", ("json_schema",)) is None:
        raise entry.fault("type", "missing", expected="json_schema")
    schema: dict[str, Any] | None = entry.mapping("schema")
    if schema is None:
        raise entry.fault("schema", "missing", expected="a JSON schema")
    entry.harmless("name").done()
    return OutputFormat(kind="json_schema", schema=schema)
