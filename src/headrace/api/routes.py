"""The endpoints: body in, Call to the session, events out in the caller's dialect."""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.api.admin import Admin
from headrace.api.anthropic import parse_count
from headrace.api.anthropic_wire import MESSAGES
from headrace.api.call import conversation_of
from headrace.api.dialect import Dialect, Encoder, Envelope
from headrace.api.failure import left, speaks_anthropic
from headrace.api.fields import Fields, parse_json, shown
from headrace.api.guard import Door, read_body
from headrace.api.metrics import ServerMetrics, jsonable
from headrace.api.models import anthropic_card, anthropic_page, openai_card, openai_list
from headrace.api.openai import parse_ask, token_ids
from headrace.api.openai_encoder import CHAT, COMPLETION
from headrace.api.responses_routes import ResponsesApi
from headrace.api.run import Run, refusal
from headrace.api.served import Served
from headrace.api.session import Session, Turn
from headrace.api.sse import EventStream, Gone, Patience, comment, until_gone
from headrace.errors import RequestError

# Of a text for /tokenize: some seconds and 300 MB at the very worst; for /detokenize two seconds.
MOST_CHARS, MOST_TOKENS = 1 << 22, 1 << 20


class Api:
    """All endpoints over one session."""

    def __init__(self, session: Session, served: Served, *, door: Door, patience: Patience) -> None:
        self.session = session
        self.served = served
        self.metrics = ServerMetrics(session.client.status)
        self._door = door
        self._patience = patience
        self._admin = Admin(session, served, self._body)
        self._responses = ResponsesApi(session, served, self._body, self._generate)

    def routes(self) -> list[Route]:
        def post(path: str, endpoint: Callable[[Request], Any]) -> Route:
            return Route(path, endpoint, methods=["POST"])

        def get(path: str, endpoint: Callable[[Request], Any]) -> Route:
            return Route(path, endpoint, methods=["GET"])

        return [
            post("/v1/chat/completions", self.chat),
            post("/v1/completions", self.completions),
            post("/v1/messages", self.messages),
            post("/v1/messages/count_tokens", self.count_message),
            get("/v1/models", self.models),
            get("/v1/models/{name:path}", self.model),
            post("/tokenize", self.tokenize),
            post("/detokenize", self.detokenize),
            get("/health", self.health),
            # Agents knock there before they ask for anything.
            get("/", self.health),
            get("/api/hello", self.health),
            get("/metrics", self.prometheus),
            get("/engine/status", self.status),
            *self._responses.routes(),
            *self._admin.routes(),
        ]

    async def chat(self, request: Request) -> ASGIApp:
        return await self._generate(request, CHAT)

    async def completions(self, request: Request) -> ASGIApp:
        return await self._generate(request, COMPLETION)

    async def messages(self, request: Request) -> ASGIApp:
        return await self._generate(request, MESSAGES)

    async def count_message(self, request: Request) -> Response:
        body = await self._body(request)
        self.served.name_for(body.text("model"))

        tokens = await asyncio.to_thread(lambda: self.session.count(parse_count(body)))
        return JSONResponse({"input_tokens": tokens}, headers=self._headers())

    async def models(self, request: Request) -> Response:
        if speaks_anthropic(request.scope):
            return JSONResponse(anthropic_page(self.served, request.query_params))
        return JSONResponse(openai_list(self.served))

    async def model(self, request: Request) -> Response:
        card = anthropic_card if speaks_anthropic(request.scope) else openai_card
        return JSONResponse(card(self.served, self.served.name_for(request.path_params["name"])))

    async def tokenize(self, request: Request) -> Response:
        """Of a plain text, or of messages as the template renders them."""
        body = await self._body(request)
        self.served.name_for(body.text("model"))
        text = body.text("prompt")
        text = body.text("content") if text is None else text
        special = body.flag("add_special_tokens")
        if text is not None and len(text) > MOST_CHARS:
            found = f"{len(text)} characters"
            raise body.fault("prompt", found, expected=f"at most {MOST_CHARS}")
        ask = parse_ask(body) if text is None else None
        body.done()

        def encode() -> list[int]:
            renderer = self.session.renderer
            if ask is not None:
                return list(renderer.prompt(ask).tokens)
            return renderer.tokenizer.encode(text or "", special=True, bos=special is not False)

        tokens = await asyncio.to_thread(encode)
        reply = {"tokens": tokens, "count": len(tokens), "max_model_len": self.served.context}
        return JSONResponse(reply)

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request)
        self.served.name_for(body.text("model"))
        tokens = body.items("tokens")
        if tokens is None or not token_ids(tokens):
            raise body.fault("tokens", f"found {shown(tokens)}", expected="an array of token ids")
        if len(tokens) > MOST_TOKENS:
            found = f"{len(tokens)} of them"
            raise body.fault("tokens", found, expected=f"at most {MOST_TOKENS}")
        body.done()
        decode = functools.partial(self.session.renderer.tokenizer.decode, skip_special=False)
        text = await asyncio.to_thread(decode, tokens)
        return JSONResponse({"content": text, "prompt": text})

    async def health(self, _request: Request) -> Response:
        self.session.check_open()
        return JSONResponse({"status": "ok"})

    async def prometheus(self, _request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def status(self, _request: Request) -> Response:
        server = {"turns": len(self.session.turns), "models": list(self.served.names)}
        return JSONResponse({"server": server, "engine": jsonable(self.session.client.status())})

    async def _body(self, request: Request) -> Fields:
        data = await read_body(request, self._door.body_bytes, self._door.body_s)
        # Large bodies would hold up every stream of the loop.
        request.state.large = len(data) >= 1 << 18
        if request.state.large:
            return Fields(await asyncio.to_thread(parse_json, data))
        return Fields(parse_json(data))

    async def _generate(self, request: Request, dialect: Dialect) -> ASGIApp:
        start = time.monotonic()
        parse = functools.partial(dialect.parse, await self._body(request), self.served.defaults)
        call = await asyncio.to_thread(parse) if request.state.large else parse()
        call = replace(call, conversation=conversation_of(request.headers))
        model = self.served.answers_as(call.model)
        self.session.check_open()
        tokenizer = self.session.renderer.tokenizer
        try:
            turn = await until_gone(self.session.open(call), request.receive)
        except Gone:
            return left()
        except RequestError as error:
            error.field = None if error.field is None else dialect.rename(error.field)
            if call.stream is None or not isinstance(error, dialect.streamed):
                raise
            unread = Envelope(model, tokenizer, call, 1, (secrets.token_hex(16),))
            encoder = dialect.encoder(unread)
            return self._stream(refusal(encoder, error), encoder.ping, lambda: None)
        request.state.lease.release()  # the body has become tokens
        envelope = Envelope(model, tokenizer, call, len(turn.choices), turn.handles)
        encoder = dialect.encoder(envelope)
        run = Run(turn, encoder, start, self.metrics)
        if call.stream is not None:
            return self._stream(run.frames(), lambda: self._ping(turn, encoder), turn.close)
        try:
            reply = await until_gone(run.whole(), request.receive)
        except Gone:
            return left()
        finally:
            turn.close()
        return JSONResponse(reply, headers=self._headers())

    def _ping(self, turn: Turn, encoder: Encoder) -> bytes:
        """The dialect's own; before it the place of a turn that waits, as no dialect has words."""
        place = self.session.position(turn)
        return (comment(f"position {place} in the queue") if place else b"") + encoder.ping()

    def _stream(
        self,
        frames: AsyncGenerator[bytes, None],
        ping: Callable[[], bytes],
        close: Callable[[], None],
    ) -> EventStream:
        return EventStream(
            frames,
            close=close,
            ping=ping,
            patience=self._patience,
            headers=tuple((k.encode(), v.encode()) for k, v in self._headers().items()),
        )

    def _headers(self) -> dict[str, str]:
        name = uuid.uuid4().hex
        return {
            "x-headrace-model": self.served.id.encode("ascii", "replace").decode(),
            # The two vendors' clients look for it under different names.
            "request-id": f"req_{name}",
            "x-request-id": f"req_{name}",
        }
