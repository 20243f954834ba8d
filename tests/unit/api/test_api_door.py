"""Who may ask, how much, and how a refusal looks: one shape, and the server lives on."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest
from serving import Script

from headrace.api.guard import Door, is_loopback
from headrace.api.server import _Connection

HI = {"messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


def error_of(reply: httpx.Response) -> dict:
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


def test_unknown_routes_and_methods_look_like_other_errors(start):
    url = start().url
    assert httpx.get(url + "/v2/nothing").status_code == 404
    assert error_of(httpx.get(url + "/v2/nothing"))["code"] == "not_found"
    wrong = httpx.get(url + CHAT)
    assert wrong.status_code == 405
    assert error_of(wrong)["code"] == "method_not_allowed"
    assert "POST" in wrong.headers["allow"]
    assert httpx.head(url + "/health").status_code == 200


def test_a_refusal_has_the_shape_of_the_paths_dialect(start):
    url = start(door=Door(api_key="secret")).url
    version = {"anthropic-version": "2023-06-01"}
    asked = (("/v1/messages", {}), ("/v1/messages/count_tokens", {}), ("/v1/models", version))
    for path, headers in asked:
        reply = httpx.get(url + path, headers=headers)
        assert reply.status_code == 401
        body = reply.json()
        assert set(body) == {"type", "error", "request_id"}
        assert body["type"] == "error"
        assert body["error"]["type"] == "authentication_error"
        assert reply.headers["request-id"] == body["request_id"]
    assert error_of(httpx.get(url + "/v1/models"))["code"] == "invalid_api_key"
    assert error_of(httpx.get(url + CHAT, headers=version))["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"messages": "\xff"}', b"\x00\xff\xfe", b'{"a":NaN}'],
)
def test_a_broken_body_is_400_and_the_server_lives_on(start, body):
    server = start()
    reply = httpx.post(server.url + CHAT, content=body)
    assert reply.status_code == 400
    assert error_of(reply)["type"] == "invalid_request_error"
    assert httpx.post(server.url + CHAT, json=HI).status_code == 200


def test_a_huge_body_is_413_whether_its_length_is_told_or_not(start):
    server = start(door=Door(body_bytes=1000))
    reply = httpx.post(server.url + CHAT, content=b"x" * 3000)
    assert reply.status_code == 413
    assert error_of(reply)["code"] == "request_too_large"
    chunked = httpx.post(server.url + CHAT, content=iter([b"x" * 600, b"y" * 600]))
    assert chunked.status_code == 413
    assert httpx.post(server.url + CHAT, json=HI).status_code == 200


def sent(port: int, *lines: str, body: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.sendall("".join(f"{line}\r\n" for line in lines).encode() + body)
    return sock


def begun(port: int, path: str = CHAT) -> socket.socket:
    """A request whose body does not come to its end."""
    head = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Length: 1000", "")
    return sent(port, *head, body=b'{"messages"')


def answered(sock: socket.socket) -> bool:
    """Whether a reply of /health comes before the end of the connection."""
    got = b""
    while b'{"status":"ok"}' not in got:
        part = sock.recv(1000)
        if not part:
            return False
        got += part
    return got.startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_within_its_body_is_no_fault_of_the_server(start, caplog):
    server = start()
    begun(server.port).close()
    text = 'headrace_http_replies_total{route="/v1/chat/completions",status="499"} 1.0'
    until = time.monotonic() + 10
    while text not in httpx.get(server.url + "/metrics").text:
        assert time.monotonic() < until, httpx.get(server.url + "/metrics").text
    assert "Traceback" not in caplog.text
    assert httpx.post(server.url + CHAT, json=HI).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/tokenize"])
def test_a_body_that_does_not_end_is_given_up_in_the_dialects_shape(start, path):
    with begun(start(door=Door(body_s=0.05)).port, path) as sock:
        reply = b"".join(iter(lambda: sock.recv(4096), b""))
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert "11 bytes" in error["message"]
    assert error["type"] == ("timeout_error" if "messages" in path else "invalid_request_error")


@pytest.mark.parametrize("lines", [(), ("GET /health HTTP/1.1",), ("GET /health HTTP/1.1", "A: b")])
def test_a_request_whose_head_does_not_end_is_hung_up_on(start, monkeypatch, lines):
    monkeypatch.setattr(_Connection, "head_s", 0.05)
    server = start()
    with sent(server.port, *lines) as sock:
        assert sock.recv(100) == b""
    with sent(server.port, "GET /health HTTP/1.1", "Host: localhost", "") as sock:
        assert answered(sock)
        sock.sendall(b"GET /health")
        # A second request on the same connection, after the reply to the first.
        assert sock.recv(1000) == b""
    assert httpx.get(server.url + "/health").status_code == 200


def test_a_connection_that_waits_between_two_requests_stays(start, monkeypatch):
    monkeypatch.setattr(_Connection, "head_s", 0.05)
    with sent(start().port, "GET /health HTTP/1.1", "Host: localhost", "") as sock:
        assert answered(sock)
        time.sleep(0.2)
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answered(sock)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:1234", 200),
        ("[::1]:80", 200),
        ("app.localhost", 200),
        ("friend.lan", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_a_loopback_server_answers_to_loopback_names_only(start, host, status):
    server = start(door=Door(hosts=("friend.lan",)))
    # By hand: clients refuse to send some of these.
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        got = sock.recv(65536)
    assert got.startswith(f"HTTP/1.1 {status}".encode())


def test_a_page_of_another_origin_is_refused_and_gets_no_cors(start):
    url = start().url
    reply = httpx.post(url + CHAT, json=HI, headers={"origin": "https://evil.example"})
    assert reply.status_code == 403
    assert error_of(reply)["code"] == "forbidden"
    assert "access-control-allow-origin" not in reply.headers
    asked = httpx.options(url + CHAT, headers={"origin": url})
    assert asked.status_code == 204
    assert "access-control-allow-origin" not in asked.headers
    assert httpx.post(url + CHAT, json=HI, headers={"origin": url}).status_code == 200
    assert httpx.post(url + CHAT, json=HI, headers={"origin": "null"}).status_code == 403


def test_an_allowed_origin_gets_its_headers(start):
    page = "http://page.example"
    url = start(door=Door(origins=(page,), api_key="k")).url
    asked = httpx.options(url + CHAT, headers={"origin": page})
    assert asked.headers["access-control-allow-origin"] == page
    good = {"origin": page, "authorization": "Bearer k"}
    assert httpx.post(url + CHAT, json=HI, headers=good).headers["vary"] == "origin"
    refused = httpx.post(url + CHAT, json=HI, headers={"origin": "http://other.example"})
    assert refused.status_code == 403


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer wrong", "bearer ké", "Basic k", "k"])
def test_wrong_keys(start, key):
    url = start(door=Door(api_key="k")).url
    headers = {"authorization": key.encode()} if key else {}
    reply = httpx.post(url + CHAT, json=HI, headers=headers)
    assert reply.status_code == 401
    assert error_of(reply)["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"


def test_a_fault_of_ours_is_500_in_the_same_shape(start):
    server = start(script=Script(refuse=ZeroDivisionError("oh")))  # type: ignore[arg-type]
    reply = httpx.post(server.url + CHAT, json=HI)
    assert reply.status_code == 500
    assert "internal error" in error_of(reply)["message"]
    assert httpx.get(server.url + "/health").status_code == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("192.168.1.2", False), ("example.com", False)],
)  # fmt: skip
def test_what_is_loopback(host, expected):
    assert is_loopback(host) is expected


def test_tokenize_and_detokenize_refuse_by_name(start):
    url = start().url
    assert httpx.post(url + "/tokenize", json={"prompt": "hé"}).json()["count"] == 3
    for path, body, field in (
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {}, "messages"),
        ("/tokenize", {"prompt": "a", "speed": 1}, "speed"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [0] * 1_100_000}, "tokens"),
        ("/tokenize", {"prompt": "x" * 5_000_000}, "prompt"),
    ):
        reply = httpx.post(url + path, json=body)
        assert reply.status_code == 400
        assert error_of(reply)["param"] == field
