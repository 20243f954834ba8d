"""The official client against a real server and a scripted engine."""

from __future__ import annotations

import concurrent.futures
import re
import socket
import time

import httpx
import openai
import pytest
from serving import Script

from headrace.api.guard import Door
from headrace.api.served import Served
from headrace.api.sse import Patience
from headrace.errors import CapacityError, DeviceError

HI = [{"role": "user", "content": "hi"}]


def client_of(server, **more) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=server.url + "/v1", api_key="k", max_retries=0, timeout=20, **more
    )


def test_a_chat_is_answered_whole_with_usage(start):
    server = start()
    reply = client_of(server).chat.completions.create(model="tiny", messages=HI)
    assert reply.choices[0].message.content == "Hello there"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.role == "assistant"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (2, 12)
    assert reply.usage.total_tokens == 14
    assert reply.usage.prompt_tokens_details.cached_tokens == 0
    assert reply.model == "tiny"


def test_a_stream_gives_the_same_text_role_first_reason_last(start):
    server = start()
    chunks = list(
        client_of(server).chat.completions.create(
            model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Hello there"
    reasons = [c.choices[0].finish_reason for c in chunks[:-1]]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert len({c.id for c in chunks}) == 1


def test_without_include_usage_no_chunk_carries_usage(start):
    server = start()
    stream = client_of(server).chat.completions.create(model="tiny", messages=HI, stream=True)
    assert [c.usage for c in stream if c.usage] == []


def test_max_tokens_reaches_the_engine_and_ends_with_length(start):
    server = start()
    reply = client_of(server).chat.completions.create(
        model="tiny", messages=HI, max_completion_tokens=5
    )
    assert reply.choices[0].message.content == "Hello"
    assert reply.choices[0].finish_reason == "length"


def test_a_stop_string_cuts_the_text_and_cancels_the_sequence(start):
    server = start(script=Script("one two three four", forever=True))
    reply = client_of(server).chat.completions.create(model="tiny", messages=HI, stop=["three"])
    assert reply.choices[0].message.content == "one two "
    assert reply.choices[0].finish_reason == "stop"
    server.wait_idle()
    assert len(server.engine.cancelled) == 1


def test_n_answers_have_their_own_seeds_and_all_come_back(start):
    server = start()
    reply = client_of(server).chat.completions.create(model="tiny", messages=HI, n=3, seed=7)
    assert [c.index for c in reply.choices] == [0, 1, 2]
    assert {c.message.content for c in reply.choices} == {"Hello there"}
    assert [r.sampling.seed for r in server.engine.requests] == [7, 8, 9]
    assert reply.usage.completion_tokens == 36


def test_n_answers_stream_interleaved_and_each_ends(start):
    server = start()
    chunks = list(
        client_of(server).chat.completions.create(model="tiny", messages=HI, n=2, stream=True)
    )
    for index in (0, 1):
        mine = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert "".join(c.delta.content or "" for c in mine) == "Hello there"
        assert mine[-1].finish_reason == "stop"


def test_logprobs_have_one_entry_per_text_token(start):
    server = start(script=Script("hé"))
    reply = client_of(server).chat.completions.create(
        model="tiny", messages=HI, logprobs=True, top_logprobs=2
    )
    content = reply.choices[0].logprobs.content
    assert [bytes(entry.bytes) for entry in content] == [b"h", b"\xc3", b"\xa9"]
    assert [len(entry.top_logprobs) for entry in content] == [2, 2, 2]
    assert content[0].logprob == -0.5


def test_streamed_logprobs_are_the_same_as_whole_ones(start):
    server = start(script=Script("héé"))
    ask = {"model": "tiny", "messages": HI, "logprobs": True, "top_logprobs": 1}
    whole = client_of(server).chat.completions.create(**ask).choices[0].logprobs.content
    streamed = [
        entry
        for chunk in client_of(server).chat.completions.create(stream=True, **ask)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [e.model_dump() for e in streamed] == [e.model_dump() for e in whole]


def test_completions_take_texts_and_token_ids_and_echo(start):
    server = start()
    client = client_of(server)
    reply = client.completions.create(model="tiny", prompt=["ab", "c"], max_tokens=3, echo=True)
    assert [c.text for c in reply.choices] == ["abHel", "cHel"]
    assert [c.finish_reason for c in reply.choices] == ["length", "length"]
    assert reply.usage.prompt_tokens == 3
    ids = list(server.engine.requests[0].tokens)
    again = client.completions.create(model="tiny", prompt=ids, max_tokens=3)
    assert again.choices[0].text == "Hel"
    assert list(server.engine.requests[-1].tokens) == ids


def test_completion_logprobs_are_parallel_arrays(start):
    server = start(script=Script("abc"))
    reply = client_of(server).completions.create(model="tiny", prompt="x", logprobs=2)
    table = reply.choices[0].logprobs
    assert table.tokens == ["a", "b", "c"]
    assert table.token_logprobs == [-0.5] * 3
    assert table.text_offset == [0, 1, 2]
    assert [len(t) for t in table.top_logprobs] == [2, 2, 2]


def test_completions_default_to_16_tokens_and_stream(start):
    server = start(script=Script("abcdefgh", forever=True))
    stream = client_of(server).completions.create(model="tiny", prompt="x", stream=True)
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks) == "abcdefghabcdefgh"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_client_that_leaves_a_stream_cancels_it(start):
    server = start(script=Script("x", pace_s=0.005, forever=True))
    stream = client_of(server).chat.completions.create(model="tiny", messages=HI, stream=True)
    next(stream)
    next(stream)
    status = httpx.get(server.url + "/engine/status").json()
    assert status["engine"]["running"] == 1
    stream.close()
    server.wait_idle()
    assert httpx.get(server.url + "/engine/status").json()["engine"]["running"] == 0


@pytest.mark.parametrize("wait_s", [0.0, 30.0], ids=["generating", "queued"])
def test_a_client_that_leaves_a_whole_reply_cancels_it(start, wait_s):
    server = start(script=Script("x", pace_s=0.005, wait_s=wait_s, forever=True))
    with pytest.raises(openai.APITimeoutError):
        client_of(server).with_options(timeout=0.4).chat.completions.create(
            model="tiny", messages=HI
        )
    server.wait_idle()
    assert len(server.engine.cancelled) == 1


def test_a_client_that_stops_reading_is_cut_off_with_bounded_work(start):
    server = start(script=Script("x" * 50, forever=True), patience=Patience(ping_s=10, stall_s=0.3))
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true,'
        body += b'"logprobs":true,"top_logprobs":20}'
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            + str(len(body)).encode() + b"\r\n\r\n" + body
        )  # fmt: skip
        while not server.engine.requests:
            time.sleep(0.01)
        server.wait_idle(30)
    assert server.engine.cancelled == [1]
    # What the kernel's and the transport's buffers take is a few MB of frames of 500 bytes.
    assert server.engine.made < 50_000


def test_silence_is_filled_with_signs_of_life(start):
    server = start(script=Script("ok", wait_s=0.5), patience=Patience(ping_s=0.1))
    reply = httpx.post(
        server.url + "/v1/chat/completions", json={"messages": HI, "stream": True}, timeout=20
    )
    events = reply.text.split("\n\n")
    assert sum(event.startswith(": keep-alive") for event in events) >= 3
    assert len(set(re.findall(r'"id":"(.*?)"', reply.text))) == 1
    assert reply.text.endswith("data: [DONE]\n\n")
    stream = client_of(server).chat.completions.create(model="tiny", messages=HI, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == "ok"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": HI}),
        ("completions", {"prompt": "hi"}),
        ("messages", {"messages": HI, "max_tokens": 9}),
        ("responses", {"input": "hi"}),
    ],
)
def test_a_stream_that_waits_says_its_place_in_the_queue(start, path, body):
    server = start(script=Script("ok", wait_s=0.5), patience=Patience(ping_s=0.1))
    server.engine.queue = [{"request": 9, "position": 1}, {"request": 1, "position": 2}]
    sent = {"model": "m", "stream": True, **body}
    text = httpx.post(f"{server.url}/v1/{path}", json=sent, timeout=20).text
    assert text.count(": position 2 in the queue\n\n") >= 3


def test_an_error_in_mid_stream_is_an_event_and_the_stream_still_ends(start):
    server = start(script=Script("par", error=DeviceError("the device caught fire", fix="run")))
    reply = httpx.post(
        server.url + "/v1/chat/completions", json={"messages": HI, "stream": True}, timeout=20
    )
    assert reply.status_code == 200
    assert "the device caught fire" in reply.text
    assert reply.text.endswith("data: [DONE]\n\n")
    with pytest.raises(openai.APIError, match="caught fire"):
        list(client_of(server).chat.completions.create(model="t", messages=HI, stream=True))


def test_an_error_without_streaming_is_a_status(start):
    server = start(script=Script("par", error=DeviceError("the device caught fire")))
    with pytest.raises(openai.InternalServerError, match="caught fire"):
        client_of(server).chat.completions.create(model="t", messages=HI)


def test_a_full_queue_is_429_with_retry_after(start):
    server = start(script=Script(refuse=CapacityError("the queue is full", retry_s=3)))
    with pytest.raises(openai.RateLimitError) as caught:
        client_of(server).chat.completions.create(model="t", messages=HI, stream=True)
    assert caught.value.response.headers["retry-after"] == "3"
    assert caught.value.body["code"] == "overloaded"


def test_concurrent_streams_do_not_mix(start):
    server = start(script=Script("the quick brown fox", pace_s=0.001))
    client = client_of(server)

    def ask(_: int) -> str:
        stream = client.chat.completions.create(model="t", messages=HI, stream=True)
        return "".join(c.choices[0].delta.content or "" for c in stream)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(16))) == {"the quick brown fox"}


def test_any_model_name_is_taken_unless_names_were_given(start):
    free = start()
    reply = client_of(free).chat.completions.create(model="gpt-5", messages=HI)
    assert reply.model == "gpt-5"
    strict = start(served=Served(("mine", "yours"), 1000, exact=True))
    with pytest.raises(openai.NotFoundError) as caught:
        client_of(strict).chat.completions.create(model="gpt-5", messages=HI)
    assert caught.value.body["code"] == "model_not_found"
    assert caught.value.body["param"] == "model"
    assert client_of(strict).chat.completions.create(model="yours", messages=HI).model == "yours"
    assert [m.id for m in client_of(strict).models.list()] == ["mine", "yours"]
    assert client_of(strict).models.retrieve("mine").id == "mine"
    with pytest.raises(openai.NotFoundError):
        client_of(strict).models.retrieve("other")


def test_a_prompt_longer_than_the_context_says_so(start):
    server = start(context=10)
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(server).chat.completions.create(
            model="t", messages=[{"role": "user", "content": "x" * 10}]
        )
    assert caught.value.body["code"] == "context_length_exceeded"
    assert "10 tokens > 10 maximum" in caught.value.body["message"]
    assert server.engine.requests == []


def test_an_api_key_is_asked_of_everyone_but_health(start):
    server = start(door=Door(api_key="sesame"))
    with pytest.raises(openai.AuthenticationError):
        client_of(server).chat.completions.create(model="t", messages=HI)
    good = openai.OpenAI(base_url=server.url + "/v1", api_key="sesame", max_retries=0)
    assert good.chat.completions.create(model="t", messages=HI).choices[0].message.content
    assert httpx.get(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/metrics").status_code == 401
    assert httpx.get(server.url + "/metrics", headers={"x-api-key": "sesame"}).status_code == 200


def begun(server):
    """An answer of which something has come."""
    stream = client_of(server).chat.completions.create(model="t", messages=HI, stream=True)
    next(stream)
    next(stream)
    return stream


def test_a_stop_ends_running_answers_and_refuses_new_ones(start):
    server = start(script=Script("x", pace_s=0.01, forever=True), grace_s=0.2)
    stream = begun(server)
    server.stop()
    with pytest.raises(openai.APIError, match="stopping"):
        list(stream)
    assert server.cut == [1]
    assert server.engine.running == set()


def test_a_second_stop_ends_the_grace_and_says_so_to_its_clients(start):
    server = start(script=Script("x", pace_s=0.01, forever=True), grace_s=600)
    stream = begun(server)
    server.hasten()
    with pytest.raises(openai.APIError, match="stopping"):
        list(stream)
    assert server.cut == [1]


def test_a_stop_lets_short_answers_finish(start):
    server = start(script=Script("Hello there", pace_s=0.02), grace_s=10)
    stream = client_of(server).chat.completions.create(model="t", messages=HI, stream=True)
    next(stream)
    server.stop()
    assert "".join(c.choices[0].delta.content or "" for c in stream) == "Hello there"
    assert server.cut == [0]


def test_metrics_show_engine_and_server(start):
    server = start()
    client_of(server).chat.completions.create(model="t", messages=HI)
    text = httpx.get(server.url + "/metrics").text
    assert "headrace_engine_generated_tokens_total 11.0" in text
    assert 'headrace_engine_requests_total{finish="stop"} 3.0' in text
    assert 'headrace_engine_step_seconds_bucket{le="+Inf"} 2.0' in text
    assert 'headrace_answers_total{outcome="whole"} 1.0' in text
    assert 'headrace_http_replies_total{route="/v1/chat/completions",status="200"} 1.0' in text
