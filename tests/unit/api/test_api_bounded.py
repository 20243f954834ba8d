"""However many conversations a server has had, it holds no more: every table, in counts.

The tables are not listed here: whatever can be reached from the server is counted, so that a new
table that only grows fails this test by its name.
"""

from __future__ import annotations

import concurrent.futures
import gc
from pathlib import Path

import httpx
from census import census
from scripted import scripted_server

from headrace.api.call import CONVERSATION_HEADERS
from headrace.cache.radix import Node
from headrace.chat.echo import EchoStore

EACH = 24  # conversations between two counts
KV_TOKENS = 1600


def test_no_table_grows_with_the_conversations_that_were(tmp_path: Path) -> None:
    with (
        scripted_server(
            tmp_path,
            lambda prompt: f"I heard {len(prompt)} {hash(prompt) % 99_991}.",
            context=400,
            kv_tokens=KV_TOKENS,
            state_slots=12,
            sequences=4,
            step_tokens=128,
        ) as server,
        httpx.Client(timeout=20) as http,
    ):
        server.session.spoken = EchoStore(max_turns=16)

        def talk(number: int) -> None:
            head = {CONVERSATION_HEADERS[number % len(CONVERSATION_HEADERS)]: f"c{number}"}
            said = [{"role": "system", "content": f"system {number % 7}"}]
            for turn in range(3):
                said.append({"role": "user", "content": f"{number} asks {turn} " + "stone " * 9})
                body = {"messages": said, "max_tokens": 12, "seed": number}
                reply = http.post(f"{server.url}/v1/chat/completions", json=body, headers=head)
                said.append(reply.json()["choices"][0]["message"])
                for key in ("refusal", "annotations"):
                    said[-1].pop(key, None)
            made = {"input": f"{number} asks", "store": False, "max_output_tokens": 8}
            assert http.post(f"{server.url}/v1/responses", json=made, headers=head).is_success
            made = {**body, "messages": said[-2:-1], "max_tokens": 8}
            assert http.post(f"{server.url}/v1/messages", json=made, headers=head).is_success

        def many(first: int) -> dict[str, int]:
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                list(pool.map(talk, range(first, first + EACH)))
            server.wait_idle()
            server.heard.clear()
            gc.collect()
            return census(server.session, server.engine)

        many(0)  # tables fill up
        before, after = many(1000), many(2000)
        nodes = [node for node in gc.get_objects() if type(node) is Node]
    assert before["EchoStore._entries"] == 16
    assert before["Scheduler"] == 1
    gone = [node for node in nodes if not node.alive]
    assert gone, "nothing was evicted"
    assert not any(node.tokens or node.parent or node.children for node in gone)
    # How much of the cache is full depends on the order in which requests came, and so does what
    # waits to be forgotten: offers of blocks, up to 64 and four for each, of three things.
    offers = 3 * (64 + 4 * KV_TOKENS // 16)
    most = {"Node": KV_TOKENS, "Leaves": offers, "Conversation": offers}
    room = {place: most.get(place.split(".")[0], 30) for place in after}
    grown = {
        place: (before[place], n)
        for place, n in after.items()
        if n > 1.25 * before[place] + room[place]
    }
    assert not grown
