"""The official client against `headrace serve` with a tiny random model: the whole road."""

from __future__ import annotations

import concurrent.futures
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

sys.path.append(str(Path(__file__).parent))
from served import Served, official, serving, tiny_model

HI = [{"role": "user", "content": "What does the miller read?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    with serving(folder, "--context", "600", "--served-name", "tiny") as served:
        yield served


@pytest.fixture(scope="module")
def client(server: Served) -> openai.OpenAI:
    return official(server)


# A random model that may think first would not come to its call.
AT_ONCE = {"chat_template_kwargs": {"enable_thinking": False}}


def ask(client: openai.OpenAI, **more):
    given = {"model": "tiny", "messages": HI, "max_tokens": 24, "seed": 3, **more}
    return client.chat.completions.create(**given)


def test_the_same_seed_gives_the_same_text_streamed_or_not(client):
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.completion_tokens == whole.usage.completion_tokens
    # The same prompt again: all but its last token was there, unless a recurrent state is needed.
    assert usage.prompt_tokens_details.cached_tokens in (0, usage.prompt_tokens - 1)
    assert 1 <= whole.usage.completion_tokens <= 24
    assert whole.usage.prompt_tokens > 10
    other = ask(client, seed=4).choices[0].message.content
    assert other != whole.choices[0].message.content


def test_the_same_seed_gives_the_same_text_whatever_else_runs(client):
    alone = [ask(client, seed=s).choices[0].message.content for s in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        noise = [pool.submit(ask, client, seed=99, max_tokens=60) for _ in range(4)]
        futures = [pool.submit(ask, client, seed=s) for s in range(4)]
        together = [f.result().choices[0].message.content for f in futures]
        for future in noise:
            future.result()
    assert together == alone


def test_n_answers_are_those_of_neighbouring_seeds(client):
    several = ask(client, n=3, seed=10)
    assert [c.index for c in several.choices] == [0, 1, 2]
    singles = [ask(client, seed=10 + i).choices[0].message.content for i in range(3)]
    assert [c.message.content for c in several.choices] == singles


def test_greedy_logprobs_lead_their_tables_and_spell_the_text(client):
    reply = ask(client, temperature=0, logprobs=True, top_logprobs=3)
    entries = reply.choices[0].logprobs.content
    spelled = b"".join(bytes(e.bytes or []) for e in entries).decode("utf-8", "replace")
    assert spelled == reply.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        best = entry.top_logprobs[0]
        assert (best.token, best.logprob) == (entry.token, entry.logprob)
        values = [t.logprob for t in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert values[0] <= 0


def test_a_stop_string_ends_the_answer_before_it(client):
    text = ask(client, max_tokens=60, extra_body={"ignore_eos": True})
    content = text.choices[0].message.content
    stop = content[5:8]
    cut = ask(client, max_tokens=60, extra_body={"ignore_eos": True}, stop=[stop])
    assert cut.choices[0].message.content == content[: content.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert text.choices[0].finish_reason == "length"


def test_a_second_turn_says_how_much_of_it_was_cached(client):
    talk = [{"role": "user", "content": "where does the water of the mill go, and who reads this?"}]
    first = ask(client, messages=talk, extra_body=AT_ONCE)
    again = [*talk, {"role": "assistant", "content": "to the wheel"}, *HI]
    second = ask(client, messages=again, extra_body=AT_ONCE)
    cached = second.usage.prompt_tokens_details.cached_tokens
    # At least up to where the first answer began, as this model has attention only.
    assert 0.6 * first.usage.prompt_tokens < cached < second.usage.prompt_tokens


def test_a_forced_tool_call_is_valid_and_its_result_goes_back(client):
    reply = ask(
        client, tools=[WEATHER, CLOCK], tool_choice="required", max_tokens=300, extra_body=AT_ONCE
    )
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert call.function.name in ("get_weather", "get_time")
    assert isinstance(json.loads(call.function.arguments), dict)
    answer = ask(
        client,
        tools=[WEATHER, CLOCK],
        messages=[
            *HI,
            choice.message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ],
    )
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert answer.usage.prompt_tokens > reply.usage.prompt_tokens


def test_a_named_tool_is_called_and_its_arguments_stream_in_pieces(client):
    named = {"type": "function", "function": {"name": "get_weather"}}
    given = {"tools": [WEATHER, CLOCK], "tool_choice": named, "extra_body": AT_ONCE}
    chunks = list(ask(client, max_tokens=300, stream=True, **given))
    calls = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0].delta.tool_calls]
    assert calls[0].id
    assert calls[0].function.name == "get_weather"
    arguments = json.loads("".join(c.function.arguments or "" for c in calls))
    assert arguments["city"] in ("Paris", "Rome")
    assert 1 <= arguments["days"] <= 9
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_custom_tool_is_called_with_text_of_its_grammar(client):
    grammar = {"syntax": "lark", "definition": 'start: "\\"" /[a-c]{3,9}/ "\\n"'}
    custom = {"name": "spell", "format": {"type": "grammar", "grammar": grammar}}
    tool = {"type": "custom", "custom": custom}
    wanted = {"tools": [CLOCK, tool], "extra_body": AT_ONCE, "max_tokens": 300}
    named = {"type": "custom", "custom": {"name": "spell"}}
    choice = ask(client, **wanted, tool_choice=named, seed=3).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.type, call.custom.name) == ("tool_calls", "custom", "spell")
    assert re.fullmatch('"[a-c]{3,9}\n', call.custom.input)
    said = [
        delta.model_dump()
        for chunk in ask(client, **wanted, tool_choice=named, seed=3, stream=True)
        for choice in chunk.choices
        for delta in choice.delta.tool_calls or []
    ]
    assert (said[0]["type"], said[0]["custom"]["name"]) == ("custom", "spell")
    assert "".join(delta["custom"]["input"] for delta in said) == call.custom.input
    back = [*HI, choice.message.model_dump(exclude_none=True)]
    back.append({"role": "tool", "tool_call_id": call.id, "content": "spelled"})
    assert ask(client, messages=back, **wanted).usage.prompt_tokens > 0
    grammar["definition"] = "start: ("
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **wanted)
    assert refused.value.param == "tools[1].custom.format.grammar.definition"


def test_a_json_schema_shapes_the_answer(client):
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "count": {"type": "integer", "maximum": 99, "minimum": 0},
        },
        "required": ["kind", "count"],
        "additionalProperties": False,
    }
    for seed in range(3):
        reply = ask(
            client,
            seed=seed,
            max_tokens=200,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
        value = json.loads(reply.choices[0].message.content)
        assert set(value) == {"kind", "count"}
        assert value["kind"] in ("a", "b")
        assert 0 <= value["count"] <= 99
        assert reply.choices[0].finish_reason == "stop"


def test_completions_and_tokenize_agree_on_tokens(server, client):
    ids = httpx.post(server.url + "/tokenize", json={"prompt": "the water"}).json()["tokens"]
    back = httpx.post(server.url + "/detokenize", json={"tokens": ids}).json()["content"]
    assert back == "the water"
    ask_of = {"model": "tiny", "max_tokens": 8, "seed": 5, "logprobs": 1}
    by_text = client.completions.create(prompt="the water", **ask_of)
    by_ids = client.completions.create(prompt=ids, **ask_of)
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.usage.prompt_tokens == len(ids)
    rendered = httpx.post(server.url + "/tokenize", json={"messages": HI}).json()
    assert rendered["count"] == ask(client).usage.prompt_tokens


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_frees_the_engine(server, client, streaming):
    if streaming:
        stream = ask(client, max_tokens=500, stream=True, extra_body={"ignore_eos": True})
        next(stream)
        stream.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            ask(client.with_options(timeout=0.05), max_tokens=500, n=16)
    until = time.monotonic() + 20
    while True:
        status = httpx.get(server.url + "/engine/status").json()
        if status["engine"]["running"] == status["engine"]["waiting"] == 0:
            break
        assert time.monotonic() < until, status
        time.sleep(0.02)
    assert status["server"]["turns"] == 0


def test_a_prompt_longer_than_the_context_is_refused_and_a_fitting_one_is_clamped(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages=[{"role": "user", "content": "long " * 700}])
    assert caught.value.body["code"] == "context_length_exceeded"
    reply = ask(client, max_tokens=10_000, extra_body={"ignore_eos": True})
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.total_tokens == 600


def test_faults_name_their_field_and_the_server_lives_on(server, client):
    for fault, field in (
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"extra_body": {"stop_token_ids": [99999]}}, "stop_token_ids"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice.function.name"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages[0].content[0].type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}},
         "response_format"),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, **fault)
        assert caught.value.body["param"].startswith(field), caught.value.body
    with pytest.raises(openai.NotFoundError):
        ask(client, model="gpt-4")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[5, 100000])
    assert caught.value.body["param"] == "prompt"
    assert httpx.get(server.url + "/health").json() == {"status": "ok"}


def test_metrics_count_what_the_engine_did(server, client):
    ask(client)
    text = httpx.get(server.url + "/metrics").text
    line = next(r for r in text.splitlines() if r.startswith("headrace_engine_generated_tokens_"))
    assert float(line.split()[-1]) > 0
    assert "headrace_engine_step_seconds_bucket" in text
