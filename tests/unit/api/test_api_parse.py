"""Bodies -> calls: what is honoured, what changes nothing, and what is refused under its name."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.call import RawPrompts, StreamOptions
from headrace.api.fields import Fields, parse_json
from headrace.api.openai import parse_chat, parse_completion
from headrace.api.sampling import checkpoint_defaults
from headrace.chat.types import ToolChoice
from headrace.engine.request import Sampling
from headrace.errors import CheckpointError, HeadraceError, RequestError

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**more):
    return parse_chat(Fields({"model": "m", "messages": [USER], **more}), Sampling())


def raw(**more):
    return parse_completion(Fields({"model": "m", "prompt": "x", **more}), Sampling())


def test_every_sampling_field_arrives():
    sampling = chat(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=0.25,
        seed=11,
        max_completion_tokens=9,
        min_tokens=2,
        logit_bias={"5": -100, "6": 1.5},
        stop_token_ids=[3, 4],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=4,
    ).sampling
    assert sampling == Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1.0,
        frequency_penalty=0.25,
        seed=11,
        max_tokens=9,
        min_tokens=2,
        logit_bias={5: -100.0, 6: 1.5},
        stop_ids=frozenset({3, 4}),
        ignore_eos=True,
        logprobs=4,
    )


def test_a_silent_request_takes_the_checkpoints_defaults_and_an_explicit_one_does_not():
    defaults = Sampling(temperature=0.6, top_k=20, top_p=0.95)
    body = {"messages": [USER]}
    assert parse_chat(Fields(body), defaults).sampling == defaults
    loud = parse_chat(Fields({**body, "temperature": 1, "top_k": -1, "top_p": 1}), defaults)
    assert loud.sampling == Sampling(temperature=1.0, top_k=0, top_p=1.0)


def test_null_counts_as_absent_everywhere():
    names = [
        "temperature",
        "stop",
        "tools",
        "tool_choice",
        "response_format",
        "seed",
        "n",
        "logprobs",
    ]
    names += [
        "stream",
        "stream_options",
        "max_tokens",
        "user",
        "store",
        "functions",
        "top_logprobs",
    ]
    assert chat(**dict.fromkeys(names)) == chat()


def test_what_changes_nothing_is_taken():
    call = chat(
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        safety_identifier="s",
        prompt_cache_key="k",
        modalities=["text"],
        function_call="none",
        functions=[],
        verbosity="medium",
    )
    assert call == chat()


def test_text_parts_are_joined_and_developer_is_system():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ask = chat(messages=[{"role": "developer", "content": parts}, USER]).ask
    assert [(m.role, m.content) for m in ask.messages] == [("system", "ab"), ("user", "hi")]


def test_a_system_message_stays_where_it_stands():
    ask = chat(messages=[USER, {"role": "system", "content": "s"}, USER]).ask
    assert [m.role for m in ask.messages] == ["user", "system", "user"]


def test_an_answer_comes_back_with_its_reasoning_and_calls():
    said = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "reasoning_content": "hm ",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
        ],
    }
    result = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    first, second = chat(messages=[USER, said, result], tools=[TOOL]).ask.messages[1:]
    assert (first.content, first.reasoning) == ("", "hm ")
    assert (first.tool_calls[0].name, first.tool_calls[0].arguments) == ("f", '{"a":1}')
    assert (second.role, second.tool_call_id, second.content) == ("tool", "c1", "42")


@pytest.mark.parametrize(
    ("given_as", "choice"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("named", "f")),
    ],
)
def test_tool_choices(given_as, choice):
    assert chat(tools=[TOOL], tool_choice=given_as).ask.tool_choice == choice


@pytest.mark.parametrize(
    ("more", "thinking", "effort", "args"),
    [
        ({}, None, None, {}),
        ({"reasoning_effort": "none"}, False, "none", {}),
        ({"reasoning_effort": "minimal"}, False, "minimal", {}),
        ({"reasoning_effort": "low"}, True, "low", {}),
        ({"reasoning_effort": "xhigh"}, True, "max", {}),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            *(False, None, {"enable_thinking": False}),
        ),
        ({"chat_template_kwargs": {"x": 1}}, None, None, {"x": 1}),
    ],
)
def test_thinking(more, thinking, effort, args):
    ask = chat(**more).ask
    assert (ask.thinking, ask.effort, ask.template_args) == (thinking, effort, args)
    assert chat(thinking_budget=7).ask.thinking_budget == 7


def test_streaming_options():
    assert chat().stream is None
    assert chat(stream=True).stream == StreamOptions()
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert chat(stream=True, stream_options=options).stream == StreamOptions(True, True)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_prompts_of_a_completion(prompt, prompts):
    assert raw(prompt=prompt).ask == RawPrompts(prompts)


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
CHAT_FAULTS = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [3]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [USER, {"role": "tool", "content": "x", "tool_call_id": "c"}]},
     "messages[1].tool_call_id"),
    ({"messages": [{}] * 200_000}, "messages"),
    ({"messages": [{"role": "user", "content": [{}] * 200_000}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
     "messages[0].tool_calls[0].function"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"n": 0}, "n"),
    ({"n": 10**9}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ({"seed": 1 << 70}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": {"a": 1}}, "stop"),
    ({"stop": ["x"] * 65}, "stop"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"pace": 1}}, "stream_options.pace"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
     "tool_choice.function.name"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     "response_format.json_schema.schema"),
    ({"reasoning_effort": "heroic"}, "reasoning_effort"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"store": True}, "store"),
    ({"functions": [{}]}, "functions"),
    ({"audio": {}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"prediction": {"type": "content"}}, "prediction"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"tempreature": 1}, "tempreature"),
    ({"best_of": 2}, "best_of"),
]  # fmt: skip
RAW_FAULTS = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"best_of": 3}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"logprobs": True}, "logprobs"),
    ({"messages": [USER]}, "messages"),
]


@pytest.mark.parametrize(("body", "field"), CHAT_FAULTS, ids=lambda v: json.dumps(v)[:50])
def test_a_wrong_chat_field_is_named(body, field):
    with pytest.raises(RequestError) as caught:
        chat(**body)
    assert caught.value.field == field
    assert field in str(caught.value)


@pytest.mark.parametrize(("body", "field"), RAW_FAULTS, ids=lambda v: json.dumps(v)[:50])
def test_a_wrong_completion_field_is_named(body, field):
    with pytest.raises(RequestError) as caught:
        raw(**body)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\xff{}", "not UTF-8"),
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "nested|not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
    ids=["utf8", "cut", "empty", "nan", "inf", "surrogate", "deep", "digits"],
)
def test_a_body_that_is_not_json_is_refused(body, what):
    with pytest.raises(RequestError) as caught:
        parse_json(body)
    assert re.search(what, str(caught.value))


def test_escaped_pairs_are_text():
    assert parse_json(b'"\\ud83d\\ude42"') == "🙂"


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
names = st.text(max_size=8)
json_values = st.recursive(
    scalars | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
CHAT_FIELDS = (
    *("messages", "tools", "tool_choice", "response_format", "stop", "n", "stream", "seed"),
    *("stream_options", "logit_bias", "logprobs", "chat_template_kwargs", "temperature"),
)


@given(st.dictionaries(st.sampled_from(CHAT_FIELDS), json_values, max_size=5), st.booleans())
def test_whatever_is_sent_either_parses_or_names_a_field(body, with_messages):
    if with_messages:
        body = {**body, "messages": [USER]}
    fault = None
    try:
        call = parse_chat(Fields(body), Sampling())
    except RequestError as error:
        fault = error
    assert call.n >= 1 if fault is None else fault.field is not None


def test_defaults_come_from_the_generation_config(tmp_path):
    assert checkpoint_defaults(tmp_path) == Sampling()
    path = tmp_path / "generation_config.json"
    path.write_text('{"temperature": 0.7, "top_k": 20, "do_sample": true, "eos_token_id": 3}')
    assert checkpoint_defaults(tmp_path) == Sampling(temperature=0.7, top_k=20)
    path.write_text('{"temperature": 0.7, "do_sample": false}')
    assert checkpoint_defaults(tmp_path) == Sampling(temperature=0.0)
    path.write_text('{"temperature": ')
    with pytest.raises(CheckpointError):
        checkpoint_defaults(tmp_path)


def test_errors_are_all_of_one_tree():
    assert issubclass(RequestError, HeadraceError)


def test_a_choice_of_the_wrong_kind_of_tool_says_which_there_are():
    chosen = {"type": "custom", "custom": {"name": TOOL["function"]["name"]}}
    with pytest.raises(RequestError, match=r"among the custom tools.*no custom tools given"):
        chat(tools=[TOOL], tool_choice=chosen)
