"""The endpoints of the Responses API: answers, those that are kept, and counts of tokens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.api.dialect import Dialect
from headrace.api.errors import NotFound
from headrace.api.fields import Fields, shown
from headrace.api.responses import parse_ask, parse_response
from headrace.api.responses_store import Record, ResponseStore
from headrace.api.responses_wire import ResponseEncoder
from headrace.api.served import Served
from headrace.api.session import Session
from headrace.chat.length import ContextOverflow
from headrace.errors import RequestError

TOOL_SCHEMA = re.compile(r"(tools\[\d+\])\.function(\..*)?")
LISTED, MOST_LISTED = 20, 100  # items of a page, as in the OpenAI API


def rename(field: str) -> str:
    """What the rest calls a field of a chat -> its name here."""
    if field.startswith("messages"):
        return "input"
    if field.startswith("response_format"):
        return "text.format"
    if match := TOOL_SCHEMA.fullmatch(field):
        return match[1] + (match[2] or "")
    return {"max_tokens": "max_output_tokens", "reasoning_effort": "reasoning.effort"}.get(
        field, field
    )


class ResponsesApi:
    """All endpoints below /v1/responses."""

    def __init__(
        self,
        session: Session,
        served: Served,
        body: Callable[[Request], Awaitable[Fields]],
        generate: Callable[[Request, Dialect], Awaitable[ASGIApp]],
    ) -> None:
        """`body` reads a request's, `generate` answers it in a dialect. Both raise RequestError."""
        self._session, self._served, self._body, self._generate = session, served, body, generate
        self.store = ResponseStore()
        self._dialect = Dialect(
            "responses",
            lambda fields, defaults: parse_response(fields, defaults, self.store),
            lambda envelope: ResponseEncoder(envelope, self.store),
            rename=rename,
            # Codex reads it there; over HTTP it would only see a request that failed.
            streamed=(ContextOverflow,),
        )

    def routes(self) -> list[Route]:
        def route(path: str, method: str, endpoint: Callable[[Request], Any]) -> Route:
            return Route(f"/v1/responses{path}", endpoint, methods=[method])

        return [
            route("", "POST", self.create),
            route("/input_tokens", "POST", self.count),
            route("/compact", "POST", self.compact),
            route("/{id}", "GET", self.retrieve),
            route("/{id}", "DELETE", self.delete),
            route("/{id}/input_items", "GET", self.input_items),
            route("/{id}/cancel", "POST", self.cancel),
        ]

    async def create(self, request: Request) -> ASGIApp:
        return await self._generate(request, self._dialect)

    async def count(self, request: Request) -> Response:
        """Tokens of the prompt that a request with this input would have."""
        body = await self._body(request)
        self._served.name_for(body.text("model"))
        ask, _ = await asyncio.to_thread(parse_ask, body, self.store)
        body.refuse("conversation", "send the whole conversation as input")
        body.harmless("personality").done()
        try:
            tokens = await asyncio.to_thread(self._session.count, ask)
        except RequestError as error:
            error.field = None if error.field is None else rename(error.field)
            raise
        return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens})

    async def compact(self, request: Request) -> Response:
        raise NotFound("conversations are not compacted here", fix="ask for a summary instead")

    async def retrieve(self, request: Request) -> Response:
        query = request.query_params
        if query.get("stream", "false").lower() == "true":
            raise RequestError(
                "stream: a response that is kept is not streamed again",
                field="stream",
                expected="false",
            )
        return JSONResponse(self._record(request).response)

    async def delete(self, request: Request) -> Response:
        id = self._record(request).id
        self.store.delete(id)
        return JSONResponse({"id": id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """The items of its conversation up to its request, newest first unless asked otherwise."""
        record = self._record(request)
        query = request.query_params
        limit = query.get("limit", str(LISTED))
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MOST_LISTED:
            raise _fault("limit", limit, f"a whole number from 1 to {MOST_LISTED}")
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise _fault("order", order, "asc or desc")
        items = [*record.history, *record.items]
        if order == "desc":
            items.reverse()
        if (after := query.get("after")) is not None:
            ids = [item["id"] for item in items]
            if after not in ids:
                raise _fault("after", after, "the id of an item in this list")
            items = items[ids.index(after) + 1 :]
        page = items[: int(limit)]
        return JSONResponse(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else "",
                "last_id": page[-1]["id"] if page else "",
                "has_more": len(page) < len(items),
            }
        )

    async def cancel(self, request: Request) -> Response:
        id = self._record(request).id
        raise RequestError(
            f"response {id} was not made in the background",
            field="response_id",
            fix="close the connection to cancel an answer that is under way",
        )

    def _record(self, request: Request) -> Record:
        id = request.path_params["id"]
        record = self.store.get(id)
        if record is None:
            raise NotFound(
                f"response with id {shown(id)} not found",
                field="response_id",
                expected="one that was stored and is still kept",
            )
        return record


def _fault(name: str, value: str, expected: str) -> RequestError:
    return RequestError(f"{name}: found {shown(value)}", field=name, expected=expected)
