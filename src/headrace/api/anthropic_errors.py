"""An error in the shape of the Anthropic API."""

from __future__ import annotations

from typing import Any

from headrace.chat.length import ContextOverflow
from headrace.errors import HeadraceError, RequestError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(error: HeadraceError) -> dict[str, Any]:
    """As a whole reply and as the data of an `error` event."""
    kind = TYPES.get(error.http_status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": _message(error)}}


def _message(error: HeadraceError) -> str:
    # Agents read both numbers out of this very sentence and then compact their conversation.
    if isinstance(error, ContextOverflow):
        return error.found
    if isinstance(error, RequestError) and error.field and not error.found.startswith(error.field):
        return f"{error.field}: {error}"
    return str(error)
