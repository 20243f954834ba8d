"""One request to a server that speaks OpenAI chat, timed as its client sees it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from headrace.errors import ConfigError


@dataclass(slots=True)
class Reply:
    """What one turn took. Seconds from the moment it was sent."""

    first_s: float | None = None  # to the first text, thinking or call
    last_s: float = 0.0
    silence_s: float = 0.0  # the longest wait without any data
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    text: str = ""
    thinking: str = ""
    error: str = ""

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second behind the first."""
        if self.first_s is None or self.completion < 2 or self.last_s <= self.first_s:
            return None
        return (self.completion - 1) / (self.last_s - self.first_s)

    def message(self) -> dict[str, Any]:
        """As a client keeps it."""
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        return said | ({"reasoning_content": self.thinking} if self.thinking else {})


class Target:
    """A server and the model asked there."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        """Raises ConfigError where nothing answers."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url}", expected="a URL such as http://127.0.0.1:8713")
        self._parts: SplitResult = parts
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.model = model or self._first_model()

    def _first_model(self) -> str:
        connection = self._connect(30)
        try:
            connection.request("GET", self._path("/v1/models"), headers=self._headers)
            return str(json.loads(connection.getresponse().read())["data"][0]["id"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{self._parts.geturl()} does not list its models: {error}",
                expected="a server of the OpenAI API",
            ) from error
        finally:
            connection.close()

    def ask(self, body: Mapping[str, Any], *, timeout_s: float) -> Reply:
        """Streams one answer; what goes wrong is in `error`."""
        reply, began = Reply(), time.perf_counter()
        connection = self._connect(timeout_s)
        options = {"stream": True, "stream_options": {"include_usage": True}, "model": self.model}
        last = began
        try:
            data = json.dumps({**body, **options})
            connection.request("POST", self._path("/v1/chat/completions"), data, self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                reply.error = f"{answer.status}: {answer.read(500).decode('utf-8', 'replace')}"
                return reply
            for line in answer:
                now = time.perf_counter()
                reply.silence_s = max(reply.silence_s, now - last)
                last = now
                self._take(reply, line, now - began)
        except (OSError, http.client.HTTPException, ValueError) as error:
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
        chunk = json.loads(line[5:])
        if "error" in chunk:
            reply.error = str(chunk["error"])[:500]
            return
        usage = chunk.get("usage")
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            reply.prompt, reply.completion = usage["prompt_tokens"], usage["completion_tokens"]
            reply.cached = details.get("cached_tokens") or 0
        for text, thinking in _deltas(chunk):
            reply.first_s = at_s if reply.first_s is None else reply.first_s
            reply.last_s = at_s
            reply.text += text
            reply.thinking += thinking

    def _path(self, path: str) -> str:
        prefix = self._parts.path.rstrip("/").removesuffix("/v1")
        return prefix + path

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=timeout_s)


def _deltas(chunk: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(text, thinking) of each choice that moved on; a call moves on without either."""
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        text = delta.get("content") or choice.get("text") or ""
        thinking = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if text or thinking or delta.get("tool_calls"):
            yield text, thinking
