"""Every endpoint, streaming or not, and every way in which a request ends badly: the dialect's own
shape and status, and everything that it held comes back.

One server: the product's API, templates, scheduler and prefix cache, with answers that are given.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from scripted import Scripted, scripted_server

from headrace.api.served import Served
from headrace.errors import DeviceError

CONTEXT, CHUNK = 1200, 64
GENERATE = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
COUNT = ("/v1/responses/input_tokens", "/v1/messages/count_tokens", "/tokenize")
OTHER = ("/detokenize", "/engine/resize", "/engine/trace")
HTTP = httpx.Client(timeout=20)
ANSWER = "The wheel turns the stone. "


class Wheel:
    """The engine's steps: at will they stand still, or one of them fails."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wanted = ""  # the kind of step to act on: prefill, decode
        self._action = ""  # hold, fail
        self.standing = False

    def on(self, kind: str, action: str) -> None:
        with self._changed:
            self._wanted, self._action = kind, action

    def go(self) -> None:
        with self._changed:
            self._wanted = self._action = ""
            self._changed.notify_all()

    def __call__(self, step) -> float:
        kinds = {"prefill" if span.length > 1 else "decode" for span in step.spans}
        with self._changed:
            if self._wanted not in kinds:
                return 0.0
            if self._action == "fail":
                self._wanted = ""
                raise DeviceError("the wheel broke", fix="mend it")
            self.standing = True
            until = time.monotonic() + 20
            while self._action == "hold" and time.monotonic() < until:
                self._changed.wait(0.05)
            self.standing = False
        return 0.0


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scripted, Wheel]]:
    wheel = Wheel()
    with scripted_server(
        tmp_path_factory.mktemp("mill"),
        lambda prompt: ANSWER,
        pace=wheel,
        served=Served(("tiny",), CONTEXT, exact=True),
        context=CONTEXT,
        kv_tokens=4 * CONTEXT,
        state_slots=24,
        sequences=1,
        queued=1,
        step_tokens=CHUNK,
    ) as server:
        yield server, wheel


@pytest.fixture(autouse=True)
def nothing_stays(mill: tuple[Scripted, Wheel]) -> Iterator[None]:
    """Whatever a test did: nothing is held, every structure is sound, the next request works."""
    yield
    server, wheel = mill
    wheel.go()
    server.wait_idle()
    status = server.engine.status()
    assert (status["kv_blocks_used"], status["state_slots_used"]) == (0, 0)
    assert (status["running"], status["waiting"], status["queue"]) == (0, 0, [])
    server.engine.check()
    reply = HTTP.post(server.url + GENERATE[0], json=body(GENERATE[0]))
    assert reply.json()["choices"][0]["message"]["content"] == ANSWER


def body(path: str, text: str = "Does it turn?", **more: object) -> dict:
    message = {"role": "user", "content": text}
    fields: dict = {
        "/v1/completions": {"prompt": text, "max_tokens": 200},
        "/v1/responses": {"input": text},
        "/v1/responses/input_tokens": {"input": text},
        "/v1/messages": {"messages": [message], "max_tokens": 200},
        "/tokenize": {"prompt": text},
        "/detokenize": {"tokens": [1]},
        "/engine/resize": {"kv_tokens": 1},
        "/engine/trace": {"action": "stop"},
    }.get(path, {"messages": [message]})
    return {"model": "tiny", **fields, **more}


WRONG = {
    "/v1/completions": ("prompt", {"a": 1}),
    "/v1/responses": ("input", 5),
    "/v1/responses/input_tokens": ("input", 5),
    "/tokenize": ("prompt", [1]),
    "/detokenize": ("tokens", "x"),
    "/engine/trace": ("action", 5),
}


def checked(path: str, reply: httpx.Response, status: int, code: str | None) -> dict:
    """The error, in the shape of the path's dialect."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    made = reply.json()
    if path.startswith("/v1/messages"):
        assert set(made) == {"type", "error", "request_id"}
        assert made["type"] == "error"
        assert set(made["error"]) == {"type", "message"}
    else:
        assert set(made) == {"error"}
        assert set(made["error"]) == {"message", "type", "param", "code"}
        assert made["error"]["code"] == code
    assert made["error"]["message"]
    return made["error"]


def kind_of(path: str, openai: str, anthropic: str) -> str:
    return anthropic if path.startswith("/v1/messages") else openai


STREAMS = [
    *((path, stream) for path in GENERATE for stream in (False, True)),
    *((path, None) for path in (*COUNT, *OTHER)),
]
EVERY = pytest.mark.parametrize(("path", "stream"), STREAMS)
ANSWERS = pytest.mark.parametrize(("path", "stream"), [s for s in STREAMS if s[1] is not None])


def asked(stream: bool | None) -> dict:
    return {} if stream is None else {"stream": stream}


@EVERY
@pytest.mark.parametrize("text", ['{"model": "tiny", ', "", "[1, 2]", '"x"', '{"a": NaN}', "\xff"])
def test_what_is_no_json_object(mill, path, stream, text):
    reply = HTTP.post(mill[0].url + path, content=text.encode("latin-1"))
    error = checked(path, reply, 400, "invalid_value")
    assert error["type"] == "invalid_request_error"


# What a resize may ask for is the engine's to say, and this one cannot be resized.
@pytest.mark.parametrize(("path", "stream"), [s for s in STREAMS if s[0] != "/engine/resize"])
def test_a_field_of_a_wrong_type(mill, path, stream):
    name, value = WRONG.get(path, ("messages", 5))
    reply = HTTP.post(mill[0].url + path, json=body(path, **{name: value}, **asked(stream)))
    error = checked(path, reply, 400, "invalid_value")
    assert name in error["message"]
    assert error.get("param", name) == name


@EVERY
def test_an_unknown_model(mill, path, stream):
    reply = HTTP.post(mill[0].url + path, json=body(path, model="other", **asked(stream)))
    error = checked(path, reply, 404, "model_not_found")
    assert error["type"] == kind_of(path, "invalid_request_error", "not_found_error")
    assert "other" in error["message"]


@ANSWERS
def test_a_prompt_that_is_too_long(mill, path, stream):
    made = body(path, "wheel " * 4 * CONTEXT, **asked(stream))
    reply = HTTP.post(mill[0].url + path, json=made)
    if path == "/v1/responses" and stream:
        last = events(reply)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "context_length_exceeded"
        return
    error = checked(path, reply, 400, "context_length_exceeded")
    assert f"> {CONTEXT} maximum" in error["message"]
    assert error["message"].startswith("prompt is too long: ")


def events(reply: httpx.Response) -> list[dict]:
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) if line != "[DONE]" else {} for line in lines]


@contextmanager
def pending(server: Scripted, path: str, made: dict) -> Iterator[socket.socket]:
    """A request that was sent, and whose reply nobody reads."""
    data = json.dumps(made).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n"
        "content-type: application/json\r\n\r\n"
    )
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(head.encode() + data)
        yield sock


def until(true, what: str) -> None:
    limit = time.monotonic() + 15
    while not true():
        assert time.monotonic() < limit, what
        time.sleep(0.005)


@ANSWERS
def test_a_full_queue(mill, path, stream):
    server, wheel = mill
    wheel.on("decode", "hold")
    with ExitStack() as stack:
        for waiting in (0, 1):
            stack.enter_context(pending(server, GENERATE[0], body(GENERATE[0])))
            until(lambda: wheel.standing, "the first does not run")
            until(lambda n=waiting: len(server.session.turns) == n + 1, "it is not queued")
        reply = HTTP.post(server.url + path, json=body(path, **asked(stream)))
        error = checked(path, reply, 429, "overloaded")
        assert error["type"] == "rate_limit_error"
        assert int(reply.headers["retry-after"]) >= 1


@ANSWERS
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_the_engine_fails(mill, path, stream, kind):
    server, wheel = mill
    wheel.on(kind, "fail")
    reply = HTTP.post(server.url + path, json=body(path, **asked(stream)))
    if not stream:
        error = checked(path, reply, 500, None)
        assert error["type"] == kind_of(path, "server_error", "api_error")
        assert "the wheel broke" in error["message"]
        return
    found = events(reply)
    if path == "/v1/responses":
        error = found[-1]["response"]["error"]
        assert (found[-1]["type"], found[-1]["response"]["status"]) == ("response.failed", "failed")
        assert error["code"] == "server_error"
    elif path == "/v1/messages":
        error = found[-1]["error"]
        assert (found[-1]["type"], error["type"]) == ("error", "api_error")
    else:
        error = found[-2]["error"]
        assert found[-1] == {}  # [DONE]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "server_error"
    assert "the wheel broke" in error["message"]


@ANSWERS
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_a_client_that_leaves(mill, path, stream, phase):
    server, wheel = mill
    long = "".join(f"{phase} {path} {stream} {n} " for n in range(20))
    with ExitStack() as stack:
        wheel.on("decode" if phase == "queued" else phase, "hold")
        if phase == "queued":
            stack.enter_context(pending(server, GENERATE[0], body(GENERATE[0])))
            until(lambda: wheel.standing, "the first does not run")
        asked_before = len(server.heard)
        before = server.engine.runner.computed
        with pending(server, path, body(path, long, **asked(stream))):
            until(lambda: len(server.session.turns) == 1 + (phase == "queued"), "not there")
            until(lambda: wheel.standing, "it does not run")
        until(lambda: len(server.session.turns) == (phase == "queued"), "still wanted")
        wheel.go()
    server.wait_idle()
    computed = server.engine.runner.computed - before
    prompt = len(server.heard[-1][0])
    if phase == "queued":  # nothing of it, but the rest of the other
        assert computed <= len(server.heard[0][1]) + 2
    elif phase == "prefill":
        assert len(server.heard) == asked_before + 1
        assert prompt > 3 * CHUNK
        assert computed <= 2 * CHUNK
    else:
        assert computed <= prompt + 5
