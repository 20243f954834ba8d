"""OpenAI bodies -> Call: a field is honoured, known to change nothing, or refused by name."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from headrace.api.call import Call, RawPrompts, StreamOptions
from headrace.api.custom_tools import custom_tool, read_grammar
from headrace.api.fields import Fields, shown
from headrace.api.messages import parse_messages
from headrace.api.sampling import (
    MAX_CHOICES,
    MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    read_sampling,
    read_stop,
)
from headrace.chat.types import ChatRequest, OutputFormat, TextInput, Tool, ToolChoice
from headrace.engine.request import Sampling

TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
COMPLETION_MAX_TOKENS = 16  # the API's own default
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
HARMLESS = (
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
)


def parse_chat(body: Fields, defaults: Sampling) -> Call:
    """Of `/v1/chat/completions`. Raises RequestError naming the first field that is wrong."""
    model, n, stream = body.text("model"), _choices(body), read_stream(body)
    sampling = dataclasses.replace(
        read_sampling(body, defaults), max_tokens=_chat_max_tokens(body), logprobs=_logprobs(body)
    )
    _check_min_tokens(body, sampling)
    ask = parse_ask(body)
    _refuse_unsupported(body)
    body.done()
    return Call(ask=ask, sampling=sampling, n=n, model=model, stream=stream)


def parse_ask(body: Fields) -> ChatRequest:
    """The part of a chat body that becomes the prompt and shapes the answer."""
    messages = parse_messages(body)
    tools = parse_tools(body)
    effort = body.choice("reasoning_effort", EFFORTS)
    thinking, template_args = read_thinking(body, effort)
    parallel = body.flag("parallel_tool_calls")
    continue_last = body.flag("continue_final_message") or False
    if body.flag("add_generation_prompt") is continue_last:
        raise body.fault(
            "add_generation_prompt",
            "contradicts continue_final_message",
            fix="leave it out: it is the opposite of continue_final_message",
        )
    if continue_last and messages[-1].role != "assistant":
        raise body.fault(
            "continue_final_message",
            f"the last message is of role {messages[-1].role}",
            expected="an assistant message to go on with",
        )
    return ChatRequest(
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        parallel_tool_calls=True if parallel is None else parallel,
        format=parse_format(body),
        thinking=thinking,
        effort="max" if effort == "xhigh" else effort,  # type: ignore[arg-type]
        thinking_budget=body.whole("thinking_budget", 1, MAX_TOKENS),
        stop=read_stop(body),
        template_args=template_args,
        continue_last=continue_last,
    )


def parse_completion(body: Fields, defaults: Sampling) -> Call:
    """Of `/v1/completions`. Raises RequestError naming the first field that is wrong."""
    model, n, stream = body.text("model"), _choices(body), read_stream(body)
    max_tokens = body.whole("max_tokens", 1, MAX_TOKENS)
    logprobs = body.whole("logprobs", 0, MAX_TOP_LOGPROBS)
    sampling = dataclasses.replace(
        read_sampling(body, defaults),
        max_tokens=COMPLETION_MAX_TOKENS if max_tokens is None else max_tokens,
        logprobs=logprobs,
    )
    _check_min_tokens(body, sampling)
    echo = body.flag("echo") or False
    if echo and logprobs is not None:
        raise body.fault(
            "echo", "log probabilities of the prompt are not supported", fix="leave out one of them"
        )
    ask = RawPrompts(_prompts(body), read_stop(body), echo, parse_format(body))
    body.refuse("suffix", "infilling is not supported", unless=lambda v: v == "")
    body.refuse("best_of", "ask for n answers", unless=lambda v: v == n)
    body.harmless(*HARMLESS).done()
    return Call(ask=ask, sampling=sampling, n=n, model=model, stream=stream)


def read_stream(body: Fields) -> StreamOptions | None:
    streaming = body.flag("stream") or False
    options = body.child("stream_options")
    if options is None:
        return StreamOptions() if streaming else None
    if not streaming:
        raise body.fault("stream_options", "given without streaming", expected='"stream": true')
    usage = options.flag("include_usage") or False
    continuous = options.flag("continuous_usage_stats") or False
    options.refuse("include_obfuscation", "chunks are not padded", unless=lambda v: v is False)
    options.done()
    return StreamOptions(usage, continuous)


def parse_tools(body: Fields) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for entry in body.children("tools") or []:
        kind = entry.required_text("type")
        if kind not in ("function", "custom"):
            raise entry.fault("type", f"found {shown(kind)}", expected="function or custom")
        function = entry.child(kind)
        if function is None:
            raise entry.fault(kind, "missing", expected="an object with a name")
        name = function.required_text("name")
        if not TOOL_NAME.fullmatch(name):
            raise function.fault(
                "name", f"found {shown(name)}", expected="1 to 128 letters, digits or _ - . : /"
            )
        if any(tool.name == name for tool in tools):
            raise function.fault("name", f"{shown(name)} is given twice", expected="unique names")
        tools.append((_function if kind == "function" else _custom)(function, name))
        function.done()
        entry.done()
    return tuple(tools)


def _function(entry: Fields, name: str) -> Tool:
    return Tool(
        name=name,
        description=entry.text("description") or "",
        parameters=entry.mapping("parameters") or {},
        strict=entry.flag("strict") or False,
    )


def _custom(entry: Fields, name: str) -> Tool:
    description, wanted, text = entry.text("description"), entry.child("format"), TextInput()
    if wanted is not None:
        if wanted.choice("type", ("text", "grammar")) == "grammar":
            grammar = wanted.child("grammar")
            if grammar is None:
                raise wanted.fault("grammar", "missing", expected="syntax and definition")
            text = read_grammar(grammar)
            grammar.done()
        wanted.done()
    return custom_tool(name, description, text)


def _tool_choice(body: Fields, tools: tuple[Tool, ...]) -> ToolChoice:
    value = body.take("tool_choice")
    if value is None:
        return ToolChoice()
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            raise body.fault(
                "tool_choice",
                f"found {shown(value)}",
                expected="none, auto, required or a function to call",
            )
        if value == "required" and not tools:
            raise body.fault("tool_choice", "required, but there are no tools", expected="tools")
        return ToolChoice(value)  # type: ignore[arg-type]
    choice = Fields(value, body.path("tool_choice"))
    kind = choice.choice("type", ("function", "custom")) or "function"
    function = choice.child(kind)
    if function is None:
        raise choice.fault(kind, "missing", expected='{"name": ...}')
    name = function.required_text("name")
    names = [tool.name for tool in tools if (tool.input is None) == (kind == "function")]
    if name not in names:
        raise function.fault(
            "name",
            f"{shown(name)} is not among the {kind} tools",
            expected="one of " + (", ".join(names) or f"(no {kind} tools given)"),
        )
    function.done()
    choice.done()
    return ToolChoice("named", name)


def parse_format(body: Fields) -> OutputFormat:
    entry = body.child("response_format")
    if entry is None:
        return OutputFormat()
    kind = entry.choice("type", ("text", "json_object", "json_schema", "regex", "lark"))
    if kind is None:
        raise entry.fault("type", "missing", expected="text, json_object or json_schema")
    shape = OutputFormat(kind=kind)  # type: ignore[arg-type]
    if kind == "json_schema":
        named = entry.child("json_schema")
        if named is None:
            raise entry.fault("json_schema", "missing", expected="an object with a schema")
        schema = named.mapping("schema")
        if schema is None:
            raise named.fault("schema", "missing", expected="a JSON schema")
        named.text("name")
        named.text("description")
        named.flag("strict")  # the grammar always enforces the schema
        named.done()
        shape = dataclasses.replace(shape, schema=schema)
    elif kind in ("regex", "lark"):
        shape = dataclasses.replace(shape, pattern=entry.required_text("pattern"))
    entry.done()
    return shape


def read_thinking(body: Fields, effort: str | None) -> tuple[bool | None, dict[str, Any]]:
    """Whether to think, by the template's arguments and the effort, and those arguments."""
    args = body.mapping("chat_template_kwargs") or {}
    thinking: bool | None = None
    for name in ("enable_thinking", "thinking"):
        if isinstance(args.get(name), bool):
            thinking = args[name]
    if effort in ("none", "minimal"):
        thinking = False if thinking is None else thinking
    elif effort is not None:
        thinking = True if thinking is None else thinking
    return thinking, args


def _choices(body: Fields) -> int:
    n = body.whole("n", 1, MAX_CHOICES)
    return 1 if n is None else n


def _chat_max_tokens(body: Fields) -> int | None:
    new = body.whole("max_completion_tokens", 1, MAX_TOKENS)
    old = body.whole("max_tokens", 1, MAX_TOKENS)
    if new is not None and old is not None and new != old:
        raise body.fault(
            "max_tokens", f"{old} contradicts max_completion_tokens = {new}", fix="leave it out"
        )
    return old if new is None else new


def _logprobs(body: Fields) -> int | None:
    wanted = body.flag("logprobs") or False
    top = body.whole("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise body.fault("top_logprobs", f"{top} without logprobs", expected='"logprobs": true')
    return (top or 0) if wanted else None


def _check_min_tokens(body: Fields, sampling: Sampling) -> None:
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise body.fault(
            "min_tokens",
            f"found {sampling.min_tokens}",
            expected=f"at most max_tokens = {sampling.max_tokens}",
        )


def _prompts(body: Fields) -> tuple[str | tuple[int, ...], ...]:
    """A string, token ids, or an array of either."""
    value = body.take("prompt")
    expected = "a string, an array of strings, token ids, or an array of arrays of token ids"
    if value is None:
        raise body.fault("prompt", "missing", expected=expected)
    entries = [value] if isinstance(value, str) or (value and token_ids(value)) else value
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_CHOICES:
        raise body.fault("prompt", f"found {shown(value)}", expected=expected)
    prompts: list[str | tuple[int, ...]] = []
    for entry in entries:
        if isinstance(entry, str):
            prompts.append(entry)
        elif entry and token_ids(entry):
            prompts.append(tuple(entry))
        else:
            raise body.fault("prompt", f"found {shown(entry)} in it", expected=expected)
    return tuple(prompts)


def token_ids(value: object) -> bool:
    """Whether this is an array of whole numbers from 0 on."""
    return isinstance(value, list) and all(
        isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in value
    )


def _refuse_unsupported(body: Fields) -> None:
    body.harmless(*HARMLESS)
    body.refuse("functions", "send `tools` instead", unless=lambda v: v == [])
    body.refuse("function_call", "send `tool_choice` instead", unless=lambda v: v == "none")
    body.refuse("store", "nothing is stored", unless=lambda v: v is False)
    body.refuse("modalities", "answers are text", unless=lambda v: v == ["text"])
    body.refuse("audio", "answers are text")
    body.refuse("prediction", "leave it out")
    body.refuse("web_search_options", "the model has no web search: offer it as a tool")
    body.refuse("verbosity", "ask for it in a message", unless=lambda v: v == "medium")
    body.refuse("moderation", "answers are not moderated")
