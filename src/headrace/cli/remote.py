"""A running server: the other end of a terminal chat, over its OpenAI endpoint, or of `ctl`."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

from headrace.address import Address
from headrace.errors import DeviceError, HeadraceError, RequestError

IDLE_S = 300  # longest silence of a server that sends signs of life


class Remote:
    """One server; a connection per answer, closed early to cancel it."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._address = Address.parse(url, "--server")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def model(self) -> str:
        """The id of the model there; shows at once whether the server can be reached."""
        with _told(self._url):
            connection, reply = self._ask("GET", "/v1/models", None)
            try:
                return str(json.loads(reply.read())["data"][0]["id"])
            except (ValueError, LookupError, TypeError) as error:
                raise DeviceError(f"{self._url} does not answer as a model server") from error
            finally:
                connection.close()

    def answer(self, body: dict[str, Any], write: Callable[[str, bool], None]) -> str:
        """Streams one answer; returns its text. Raises HeadraceError."""
        text = ""
        with _told(self._url):
            connection, reply = self._ask("POST", "/v1/chat/completions", {**body, "stream": True})
            try:
                for chunk in _events(reply):
                    for piece, reasoning in _pieces(chunk):
                        write(piece, reasoning)
                        text += "" if reasoning else piece
            finally:
                connection.close()
        return text

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The whole reply of an endpoint, such as `/engine/status`. Raises HeadraceError."""
        with _told(self._url):
            connection, reply = self._ask(method, path, body)
            try:
                return reply.read()
            finally:
                connection.close()

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._address.connect(IDLE_S)
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, self._address.path(path), data, self._headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise _refused(reply.status, reply.read())
        return connection, reply


class _told:
    """Turns what a socket can raise into one message."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | http.client.HTTPException):
            raise DeviceError(
                f"cannot talk to {self._url}: {error}",
                expected="a running server",
                fix="start one with `headrace serve`, or check the URL",
            ) from error


def _events(reply: http.client.HTTPResponse) -> Iterator[Any]:
    """The JSON of each event until the end mark. Raises the error that an event carries."""
    for line in reply:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise _refused(500, data)
        yield chunk
    raise DeviceError("the server ended the answer without its end mark", fix="try again")


def _pieces(chunk: Any) -> Iterator[tuple[str, bool]]:
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta", {})
        if delta.get("reasoning_content"):
            yield delta["reasoning_content"], True
        if delta.get("content"):
            yield delta["content"], False


def _refused(status: int, body: bytes) -> HeadraceError:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = f"HTTP status {status}"
    kind = RequestError if status < 500 else DeviceError
    return kind(f"the server says: {message}")
