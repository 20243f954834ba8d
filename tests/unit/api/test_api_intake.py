"""Many large bodies at once: what is held is bounded, and who finds no room is told so."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_api_door import CHAT, sent

from headrace.api.guard import Door
from headrace.api.intake import SMALL_BYTES, Intake, Lease
from headrace.errors import CapacityError

LARGE = SMALL_BYTES + 100_000
DOOR = Door(body_bytes=LARGE + 1000, intake_bytes=2 * LARGE + 2000)
BODIES = {
    CHAT: lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/responses": lambda text: {"input": text, "model": "m"},
    "/v1/responses/input_tokens": lambda text: {"input": text},
    "/v1/messages": lambda text: {
        "messages": [{"role": "user", "content": text}],
        "model": "m",
        "max_tokens": 5,
    },
    "/v1/messages/count_tokens": lambda text: {
        "messages": [{"role": "user", "content": text}],
        "model": "m",
    },
    "/tokenize": lambda text: {"prompt": text},
}


async def _nothing(scope, receive, send):
    raise AssertionError("not called")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 300_000)), max_size=60))
def test_what_is_held_is_what_the_large_ones_have(steps):
    intake = Intake(_nothing, limit=700_000)
    leases = [Lease(intake) for _ in range(5)]
    sizes = [0] * 5
    for who, more in steps:
        if more < 1000:
            leases[who].release()
            sizes[who] = 0
            continue
        large = sum(n for i, n in enumerate(sizes) if n > SMALL_BYTES and i != who)
        grown = sizes[who] + more
        if grown > SMALL_BYTES and large + grown > 700_000:
            with pytest.raises(CapacityError):
                leases[who].grow(more)
            sizes[who] = 0
        else:
            leases[who].grow(more)
            sizes[who] = grown
        assert intake.held == sum(n for n in sizes if n > SMALL_BYTES) <= 700_000
    for lease in leases:
        lease.release()
    assert intake.held == 0


def test_what_others_hold_is_told():
    intake = Intake(_nothing, limit=SMALL_BYTES * 4)
    Lease(intake).grow(SMALL_BYTES * 3)
    with pytest.raises(CapacityError, match=f"^{SMALL_BYTES * 3} bytes"):
        Lease(intake).grow(SMALL_BYTES * 2)


def held(port: int):
    """A large body that does not come to its end."""
    head = ("POST /v1/chat/completions HTTP/1.1", "Host: localhost", f"Content-Length: {LARGE}", "")
    return sent(port, *head, body=b" " * (LARGE - 1))


@pytest.mark.parametrize("path", BODIES)
def test_without_room_it_is_429_in_the_dialects_shape_and_small_ones_pass(start, path):
    server = start(door=DOOR, context=LARGE * 2)
    large = {**BODIES[path]("hi"), "metadata": None, "pad": None}
    text = json.dumps(large) + " " * LARGE
    text = text[: LARGE - 1]
    small = json.dumps(BODIES[path]("hi"))
    url = server.url + path
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(held(server.port)) for _ in range(2)]
        until = time.monotonic() + 10
        while (reply := httpx.post(url, content=text)).status_code != 429:
            assert time.monotonic() < until
        assert int(reply.headers["retry-after"]) >= 1
        body = reply.json()
        assert body["error"]["type"] == "rate_limit_error"
        assert ("request_id" in body) is ("/messages" in path)
        assert httpx.post(url, content=small).status_code == 200
        socks[0].close()
        until = time.monotonic() + 10
        while httpx.post(url, content=text).status_code == 429:
            assert time.monotonic() < until


def test_a_crowd_of_large_bodies_is_answered_or_told_to_wait_and_leaves_nothing(start):
    server = start(door=DOOR, context=LARGE * 2)
    bodies = [json.dumps(BODIES[CHAT](str(i))).ljust(LARGE - 1) for i in range(12)]

    def post(content):
        return httpx.post(server.url + CHAT, content=content, timeout=30).status_code

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        found = set(pool.map(post, bodies))
    assert found <= {200, 429}
    for body in bodies[:3]:  # all room is free again
        assert post(body) == 200
    too_large = b" " * (LARGE + 2000)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(post, [too_large] * 4)) <= {413, 429}
    assert post(bodies[0]) == 200
