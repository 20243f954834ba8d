"""An error's HTTP status and code, and its shape in the OpenAI dialect."""

from __future__ import annotations

from typing import Any

from headrace.chat.length import ContextOverflow
from headrace.errors import CapacityError, HeadraceError, RequestError


class UnknownModel(RequestError):
    http_status = 404


class Unauthorized(RequestError):
    http_status = 401


class Forbidden(RequestError):
    """A page of another site, or a name that is not ours (DNS rebinding)."""

    http_status = 403


class NotFound(RequestError):
    http_status = 404


class PreviousNotFound(RequestError):
    """The response that this one follows is not kept; 400, as the OpenAI API has it."""


class WrongMethod(RequestError):
    http_status = 405


class Busy(RequestError):
    """Something of the kind is being done already."""

    http_status = 409


class TooSlow(RequestError):
    """A body that does not come to its end."""

    http_status = 408


class TooLarge(RequestError):
    http_status = 413


class Unavailable(CapacityError):
    """The server is stopping or its engine has died."""

    def __init__(self, found: str, *, fix: str = "", retry_s: float | None = 1.0) -> None:
        super().__init__(found, fix=fix, retry_s=retry_s)
        self.http_status = 503


CODES: dict[type[HeadraceError], str] = {
    ContextOverflow: "context_length_exceeded",
    UnknownModel: "model_not_found",
    Unauthorized: "invalid_api_key",
    Forbidden: "forbidden",
    NotFound: "not_found",
    PreviousNotFound: "previous_response_not_found",
    WrongMethod: "method_not_allowed",
    Busy: "busy",
    TooSlow: "request_timeout",
    TooLarge: "request_too_large",
    Unavailable: "unavailable",
}

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


def retry_after(error: HeadraceError) -> str | None:
    """The Retry-After header, in whole seconds."""
    if isinstance(error, CapacityError) and error.retry_s is not None:
        return str(max(1, round(error.retry_s)))
    return None


def error_body(error: HeadraceError) -> dict[str, Any]:
    """The error as the OpenAI API words it."""
    status = error.http_status
    code = CODES.get(type(error))
    if code is None and isinstance(error, CapacityError):
        code = "overloaded" if status == 429 else "capacity_exceeded"
    if code is None and status == 400:
        code = "invalid_value"
    return {
        "error": {
            "message": str(error),
            "type": TYPES.get(status, "server_error"),
            "param": error.field if isinstance(error, RequestError) else None,
            "code": code,
        }
    }
