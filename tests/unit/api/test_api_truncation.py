"""`truncation: "auto"` over HTTP, with real templates and tokens."""

from __future__ import annotations

from pathlib import Path

import httpx
from scripted import scripted_server


def test_the_oldest_items_are_left_out_until_the_input_fits(tmp_path: Path) -> None:
    seen: list[str] = []

    def say(prompt: str) -> str:
        seen.append(prompt)
        return "Yes."

    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
    items = [{"role": "developer", "content": "Be brief."}]
    for n in range(40):
        items += [{"role": "user", "content": f"question {n} " + "wheel " * 10}]
        items += [{**call, "call_id": f"c{n}"}]
        output = f"result {n} " + "stone " * 10
        items += [{"type": "function_call_output", "call_id": f"c{n}", "output": output}]
        items += [{"role": "assistant", "content": f"answer {n}"}]
    items += [{"role": "user", "content": "and now?"}]
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    body = {"model": "m", "input": items, "tools": tools, "max_output_tokens": 20}
    with scripted_server(tmp_path, say, context=1500) as server:
        url = f"{server.url}/v1/responses"
        refused = httpx.post(url, json=body, timeout=20)
        made = httpx.post(url, json={**body, "truncation": "auto"}, timeout=20).json()
        counted = httpx.post(
            f"{url}/input_tokens",
            json={"input": items, "tools": tools, "truncation": "auto"},
            timeout=20,
        ).json()
        long = {**body, "input": "wheel " * 3000, "truncation": "auto"}
        still = httpx.post(url, json=long, timeout=20)
    assert (refused.status_code, still.status_code) == (400, 400)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert still.json()["error"]["code"] == "context_length_exceeded"
    assert made["status"] == "completed"
    assert made["truncation"] == "auto"
    assert 700 < made["usage"]["input_tokens"] < 1500 - 20
    assert 700 < counted["input_tokens"] < 1500
    (prompt,) = seen
    assert "Be brief." in prompt
    assert "and now?" in prompt
    assert "question 39" in prompt
    assert "question 0 " not in prompt
    whole = [n for n in range(40) if f"question {n} " in prompt]
    assert whole == list(range(whole[0], 40))
    assert [n for n in range(40) if f"result {n} " in prompt] == whole


def test_what_fits_without_room_for_the_answer_is_shortened(tmp_path: Path) -> None:
    turns = [
        {"role": role, "content": f"{n} " + "wheel " * 8}
        for n in range(8)
        for role in ("user", "assistant")
    ]
    items = [*turns, {"role": "user", "content": "and now?"}]
    body = {"model": "m", "input": items}
    with scripted_server(tmp_path, lambda _: "Yes.", context=4000) as server:
        full = httpx.post(f"{server.url}/v1/responses", json=body, timeout=20).json()
    tokens = full["usage"]["input_tokens"]
    body |= {"truncation": "auto", "max_output_tokens": 100}
    with scripted_server(tmp_path, lambda _: "Yes.", context=tokens + 9) as server:
        made = httpx.post(f"{server.url}/v1/responses", json=body, timeout=20).json()
    assert made["usage"]["input_tokens"] + 100 <= tokens + 9
    assert made["status"] == "completed"
