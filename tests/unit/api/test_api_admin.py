"""/engine/resize and /engine/trace as HTTP: what is refused, and that one resize runs at a time."""

from __future__ import annotations

import concurrent.futures
import threading

import httpx
import pytest

from headrace.api.served import Served
from headrace.engine.recorder import Recorder
from headrace.errors import CapacityError, RequestError
from headrace.planning.trace import MAGIC, TraceModel


class ScriptedLive:
    """Stands in for the engine's; a resize waits until it may go on."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.recorder = Recorder(TraceModel("test", (4,), (2,), (10,)))

    def ask(self, body: dict) -> dict:
        self.asked.append(body)
        self.entered.set()
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        return {"after": body}


@pytest.fixture
def live(start):
    running = start(served=Served(("tiny",), 1000, exact=True))
    running.engine.live = ScriptedLive()
    running.engine.live.url = running.url
    return running.engine.live


def post(live, path: str, **body: object) -> httpx.Response:
    return httpx.post(live.url + path, json=body, timeout=30)


def test_a_resize_passes_on_what_is_named_and_null_is_absent(live):
    reply = post(live, "/engine/resize", experts="25%", kv_tokens=None, model="tiny")
    assert reply.status_code == 200
    assert reply.json() == {"after": {"experts": "25%"}}
    assert live.asked == [{"experts": "25%"}]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/engine/resize", {"vram": 3}, 400, "vram"),
        ("/engine/resize", {"experts": "1", "model": "other"}, 404, "other"),
        ("/engine/trace", {}, 400, "start, stop"),
        ("/engine/trace", {"action": "pause"}, 400, "start, stop"),
        ("/engine/trace", {"action": "start", "tokens": 0}, 400, "from 1 to"),
        ("/engine/trace", {"action": "start", "tokens": 1 << 40}, 400, "from 1 to"),
        ("/engine/trace", {"action": "stop", "tokens": 5}, 400, "tokens"),
        ("/engine/trace", {"action": "stop"}, 400, "start one first"),
    ],
)
def test_nonsense_is_refused_by_name(live, path, body, status, said):
    reply = post(live, path, **body)
    assert reply.status_code == status
    assert said in reply.json()["error"]["message"]
    assert live.asked == []


def test_a_resize_while_another_runs_is_refused_and_the_first_ends_well(live):
    live.go.clear()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, live, "/engine/resize", experts="1 slots")
        assert live.entered.wait(30)
        second = post(live, "/engine/resize", experts="2 slots")
        # Neither streams nor looks wait for it.
        assert httpx.get(live.url + "/health").status_code == 200
        live.go.set()
        assert first.result(30).status_code == 200
    assert second.status_code == 409
    assert second.json()["error"]["code"] == "busy"
    assert "one at a time" in second.json()["error"]["message"]
    assert post(live, "/engine/resize", experts="3 slots").status_code == 200


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CapacityError("3 slots", expected="4 to 8"), "capacity_exceeded"),
        (RequestError("x", field="experts"), "invalid_value"),
    ],
)
def test_the_engines_refusal_is_the_reply(live, error, code):
    live.error = error
    reply = post(live, "/engine/resize", experts="3 slots")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)
    assert reply.json()["error"]["message"] == str(error)
    live.error = None
    assert post(live, "/engine/resize", experts="3 slots").status_code == 200


def test_a_trace_is_started_once_and_stopped_as_a_file(live):
    reply = post(live, "/engine/trace", action="start", tokens=7)
    assert reply.json() == {"recording": True, "tokens": 7}
    again = post(live, "/engine/trace", action="start")
    assert again.status_code == 400
    assert "being recorded" in again.json()["error"]["message"]
    file = post(live, "/engine/trace", action="stop")
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.content.startswith(MAGIC)
