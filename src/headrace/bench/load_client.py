"""One request to a server, in the dialect of its client, timed as that client sees it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.address import Address
from headrace.bench.load_dialects import DIALECTS, Answer
from headrace.errors import ConfigError


@dataclass(slots=True)
class Reply:
    """What one turn took. Seconds from the moment it was sent."""

    first_s: float | None = None  # to the first text, thinking or call
    last_s: float = 0.0
    silence_s: float = 0.0  # the longest wait without any data
    answer: Answer = field(default_factory=Answer)
    error: str = ""

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second behind the first."""
        made = self.answer.completion
        if self.first_s is None or made < 2 or self.last_s <= self.first_s:
            return None
        return (made - 1) / (self.last_s - self.first_s)


class Target:
    """A server, the model asked there and the dialect spoken."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        dialect: str = "chat",
    ) -> None:
        """`dialect`: a name in DIALECTS. Raises ConfigError where nothing answers."""
        self._address = Address.parse(url, "--url")
        if dialect not in DIALECTS:
            raise ConfigError(f"dialect {dialect!r}", expected="one of " + ", ".join(DIALECTS))
        self._dialect = DIALECTS[dialect]
        self._headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
        if api_key:
            self._headers |= {"Authorization": f"Bearer {api_key}", "x-api-key": api_key}
        self.model = model or self._first_model()

    def _first_model(self) -> str:
        connection = self._address.connect(30)
        try:
            connection.request("GET", self._address.path("/v1/models"), headers=self._headers)
            return str(json.loads(connection.getresponse().read())["data"][0]["id"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{self._address.base} does not list its models: {error}",
                expected="a server of the OpenAI or the Anthropic API",
            ) from error
        finally:
            connection.close()

    def ask(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        max_tokens: int,
        tools: Sequence[dict[str, Any]] = (),
        more: Mapping[str, Any] | None = None,
        timeout_s: float,
    ) -> Reply:
        """Streams one answer; what goes wrong is in `error`. `more`: fields of the dialect."""
        body = {**self._dialect.body(messages, tools, max_tokens), "model": self.model}
        reply, began = Reply(), time.perf_counter()
        connection = self._address.connect(timeout_s)
        last = began
        try:
            data = json.dumps({**body, **(more or {})})
            path = self._address.path(self._dialect.path)
            connection.request("POST", path, data, self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                reply.error = f"{answer.status}: {answer.read(500).decode('utf-8', 'replace')}"
                return reply
            for line in answer:
                now = time.perf_counter()
                reply.silence_s = max(reply.silence_s, now - last)
                last = now
                self._take(reply, line, now - began)
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            reply.error = f"{type(error).__name__}: {error}"
        finally:
            connection.close()
            reply.last_s = reply.last_s or time.perf_counter() - began
        if reply.first_s is None and not reply.error:
            reply.first_s = reply.last_s  # an empty answer
        return reply

    def _take(self, reply: Reply, line: bytes, at_s: float) -> None:
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            return
        event = json.loads(line[5:])
        if event.get("error"):
            reply.error = str(event["error"])[:500]
            return
        if self._dialect.take(reply.answer, event):
            reply.first_s = at_s if reply.first_s is None else reply.first_s
            reply.last_s = at_s
        reply.error = reply.error or reply.answer.error

    def send(
        self, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 30
    ) -> http.client.HTTPConnection:
        """Asks for `path`, or posts `body` there; the caller takes the response, and closes."""
        connection = self._address.connect(timeout_s)
        data = None if body is None else json.dumps(body)
        method = "GET" if body is None else "POST"
        try:
            connection.request(method, self._address.path(path), data, self._headers)
        except BaseException:
            connection.close()
            raise
        return connection
