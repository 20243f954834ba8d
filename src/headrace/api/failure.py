"""An error as an HTTP reply, in the shape of the dialect whose path was called."""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from headrace.api.anthropic_errors import anthropic_error
from headrace.api.errors import error_body, retry_after
from headrace.errors import HeadraceError


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the caller of this path expects Anthropic's shapes.

    Both vendors' clients ask for `/v1/models`; only one of them sends a version.
    """
    path: str = scope["path"]
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return True
    models = path == "/v1/models" or path.startswith("/v1/models/")
    return models and "anthropic-version" in Headers(scope=scope)


def left() -> Response:
    """To a client that is gone: for the log and the metrics."""
    return Response(status_code=499)


def failure(error: HeadraceError, scope: Scope) -> JSONResponse:
    """The reply for an error."""
    headers = {}
    wait = retry_after(error)
    if wait is not None:
        headers["retry-after"] = wait
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.http_status in (408, 413):
        headers["connection"] = "close"  # what is left of the body would be read as a request
    if speaks_anthropic(scope):
        body = anthropic_error(error)
        headers["request-id"] = body["request_id"] = f"req_{uuid.uuid4().hex}"
    else:
        body = error_body(error)
    return JSONResponse(body, status_code=error.http_status, headers=headers)
