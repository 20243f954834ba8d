"""The one exception tree. Every message says what was found, what was expected and what to do.

HeadraceError
├── ConfigError       the user's flags, TOML file or `--set` keys       exit 2, HTTP 400
├── CheckpointError   files of a model: missing, torn, unknown          exit 1, HTTP 500
├── RequestError      one request is malformed or unsupported           exit 2, HTTP 400
├── CapacityError     right, but it does not fit now or ever            exit 1, HTTP 429 or 400
└── DeviceError       the hardware or its driver refused                exit 1, HTTP 500
"""


class HeadraceError(Exception):
    """Base of all errors that are not our own mistakes.

    `found` says what was met, `expected` what would have been right, `fix` what the user can do.
    """

    exit_code = 1
    http_status = 500

    def __init__(self, found: str, *, expected: str = "", fix: str = "") -> None:
        self.found, self.expected, self.fix = found, expected, fix
        parts = [found, f"expected {expected}" if expected else "", fix]
        super().__init__("; ".join(p for p in parts if p))


class ConfigError(HeadraceError):
    """A setting is unknown, malformed or contradicts another."""

    exit_code = 2
    http_status = 400


class CheckpointError(HeadraceError):
    """A checkpoint is missing, truncated, corrupt or of an unknown kind."""


class RequestError(HeadraceError):
    """A request is malformed or asks for what is not supported; `field` names the culprit."""

    exit_code = 2
    http_status = 400

    def __init__(
        self, found: str, *, field: str | None = None, expected: str = "", fix: str = ""
    ) -> None:
        super().__init__(found, expected=expected, fix=fix)
        self.field = field


class CapacityError(HeadraceError):
    """What was asked does not fit. `retry_s` is set when it may fit later (HTTP 429)."""

    http_status = 400

    def __init__(
        self, found: str, *, expected: str = "", fix: str = "", retry_s: float | None = None
    ) -> None:
        super().__init__(found, expected=expected, fix=fix)
        self.retry_s = retry_s
        if retry_s is not None:
            self.http_status = 429


class DeviceError(HeadraceError):
    """The hardware or its driver refused."""
