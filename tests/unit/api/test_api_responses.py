"""`/v1/responses` over HTTP with a scripted engine: replies, what is kept, errors, any body."""

from __future__ import annotations

import contextlib
import json

import httpx
import pytest
import responses_bodies
from hypothesis import HealthCheck, given, settings
from serving import Script

from headrace.api.guard import Door
from headrace.api.sse import Patience
from headrace.errors import CapacityError, DeviceError


def post(running, path="", **body):
    return httpx.post(f"{running.url}/v1/responses{path}", json=body, timeout=20)


def events(reply):
    """The stream's data; every event has its name and the next number."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    blocks = reply.text.removesuffix("\n\n").split("\n\n")
    found = []
    for n, block in enumerate(blocks):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        assert found[-1]["sequence_number"] == n
    return found


def test_a_whole_reply_is_kept_and_can_be_read_and_deleted(start):
    running = start()
    reply = post(running, model="m", input="hi", metadata={"a": "b"})
    assert reply.status_code == 200
    made = reply.json()
    assert made["output"][0]["content"][0]["text"] == "Hello there"
    assert made["usage"]["input_tokens"] == 2
    assert made["usage"]["output_tokens"] == 12
    url = f"{running.url}/v1/responses/{made['id']}"
    assert httpx.get(url).json() == made
    items = httpx.get(url + "/input_items").json()
    assert items["data"][0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert items["first_id"] == items["last_id"] == items["data"][0]["id"]
    assert httpx.get(url + "?stream=true").status_code == 400
    assert httpx.post(url + "/cancel").status_code == 400
    assert httpx.delete(url).json() == {"id": made["id"], "object": "response", "deleted": True}
    for gone in (httpx.get(url), httpx.delete(url), httpx.get(url + "/input_items")):
        assert gone.status_code == 404
        assert gone.json()["error"]["code"] == "not_found"


def test_what_was_not_to_be_stored_is_not(start):
    running = start()
    made = post(running, model="m", input="hi", store=False).json()
    assert made["store"] is False
    assert httpx.get(f"{running.url}/v1/responses/{made['id']}").status_code == 404
    again = post(running, model="m", input="more", previous_response_id=made["id"])
    assert again.status_code == 400
    assert again.json()["error"]["code"] == "previous_response_not_found"
    assert again.json()["error"]["param"] == "previous_response_id"


def test_a_conversation_is_listed_newest_first_page_by_page(start):
    running = start()
    first = post(running, model="m", input="one").json()
    second = post(running, model="m", input="two", previous_response_id=first["id"]).json()
    assert [m.content for m in running.renderer.seen[-1].messages] == ["one", "Hello there", "two"]
    url = f"{running.url}/v1/responses/{second['id']}/input_items"

    def texts(**query):
        page = httpx.get(url, params=query).json()
        return [item["content"][0]["text"] for item in page["data"]], page

    assert texts()[0] == ["two", "Hello there", "one"]
    assert texts(order="asc")[0] == ["one", "Hello there", "two"]
    found, page = texts(limit=1)
    assert (found, page["has_more"]) == (["two"], True)
    found, page = texts(after=page["last_id"], limit=2)
    assert (found, page["has_more"]) == (["Hello there", "one"], False)
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "nothing"}):
        reply = httpx.get(url, params=wrong)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] in wrong


def test_a_streamed_reply_is_kept_as_its_last_event_said(start):
    running = start()
    found = events(post(running, model="m", input="hi", stream=True))
    last = found[-1]["response"]
    assert found[-1]["type"] == "response.completed"
    deltas = [e["delta"] for e in found if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == last["output"][0]["content"][0]["text"] == "Hello there"
    assert httpx.get(f"{running.url}/v1/responses/{last['id']}").json() == last


def test_an_answer_that_was_cut_is_incomplete(start):
    running = start()
    reply = post(running, model="m", input="hi", max_output_tokens=3).json()
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reply["output"][0]["status"] == "incomplete"
    assert reply["usage"]["output_tokens"] == 3


def test_a_prompt_that_is_too_long_fails_in_the_stream_or_as_a_reply(start):
    running = start(context=10)
    reply = post(running, model="m", input="x" * 20)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    assert error["message"].startswith("prompt is too long: 20 tokens > 10 maximum")
    found = events(post(running, model="m", input="x" * 20, stream=True))
    assert [e["type"] for e in found] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert found[-1]["response"]["error"]["code"] == "context_length_exceeded"
    running.wait_idle()


def test_an_error_in_mid_stream_is_a_failed_response(start):
    running = start(script=Script(text="Half", error=DeviceError("the device broke")))
    found = events(post(running, model="m", input="hi", stream=True))
    assert found[-1]["type"] == "response.failed"
    assert found[-1]["response"]["error"] == {
        "code": "server_error",
        "message": "the device broke",
    }
    assert httpx.get(f"{running.url}/v1/responses/{found[0]['response']['id']}").status_code == 404
    assert post(running, model="m", input="hi").status_code == 500


def test_a_full_queue_is_429_streaming_or_not(start):
    running = start(script=Script(refuse=CapacityError("full", retry_s=3)))
    for stream in (False, True):
        reply = post(running, model="m", input="hi", stream=stream)
        assert reply.status_code == 429
        assert reply.headers["retry-after"] == "3"


def test_silences_are_filled_with_numbered_data(start):
    running = start(script=Script(wait_s=0.4), patience=Patience(ping_s=0.1))
    found = events(post(running, model="m", input="hi", stream=True))
    kinds = [e["type"] for e in found]
    assert 3 <= kinds.count("response.in_progress") <= 6
    assert kinds[-1] == "response.completed"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_answer(start, stream):
    running = start(script=Script(forever=True, pace_s=0.01))
    body = {"model": "m", "input": "hi", "stream": stream}
    with contextlib.suppress(httpx.ReadTimeout), httpx.Client(timeout=0.5) as client:
        url = f"{running.url}/v1/responses"
        with client.stream("POST", url, json=body) as reply:
            assert stream, "a whole reply cannot have begun"
            assert next(reply.iter_raw())
    running.wait_idle()
    assert running.engine.cancelled


def test_tokens_of_an_input_can_be_counted(start):
    running = start()
    reply = post(running, "/input_tokens", model="m", input="12345", tools=[], reasoning={})
    assert reply.json() == {"object": "response.input_tokens", "input_tokens": 5}
    assert post(running, "/input_tokens", model="m", input=5).json()["error"]["param"] == "input"
    assert post(running, "/compact", model="m", input="x").status_code == 404


def test_the_door_holds_for_what_is_kept(start):
    running = start(door=Door(api_key="secret"))
    key = {"authorization": "Bearer secret"}
    url = f"{running.url}/v1/responses"
    made = httpx.post(url, json={"model": "m", "input": "hi"}, headers=key).json()
    assert httpx.get(f"{url}/{made['id']}").status_code == 401
    assert httpx.delete(f"{url}/{made['id']}").status_code == 401
    assert httpx.get(f"{url}/{made['id']}", headers=key).status_code == 200


def test_any_body_is_answered_or_refused_in_the_apis_shape(start):
    running = start()
    client = httpx.Client(timeout=20)
    seen = set()

    @settings(
        max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(responses_bodies.BODIES)
    def holds(body):
        reply = client.post(f"{running.url}/v1/responses", content=json.dumps(body))
        seen.add(reply.status_code)
        if reply.status_code == 200 and isinstance(body, dict) and body.get("stream") is True:
            assert events(reply)[-1]["type"] in ("response.completed", "response.failed")
        elif reply.status_code == 200:
            assert reply.json()["object"] == "response"
        else:
            assert reply.status_code in (400, 404)
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}

    holds()
    client.close()
    assert seen >= {200, 400}
