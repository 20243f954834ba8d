"""The URL of a server, as commands take it, and connections to what it names."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """Scheme, host and port, and a prefix of all paths: `/v1` at its end is left out."""

    parts: SplitResult

    @classmethod
    def parse(cls, url: str, option: str) -> Address:
        """The scheme may be left out. Raises ConfigError that names `option`."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none, half a pair of brackets
            whole = None
        if not whole:
            raise ConfigError(f"{option} {url}", expected="a URL such as http://127.0.0.1:8713")
        return cls(parts)

    def path(self, path: str) -> str:
        """`path` behind the prefix."""
        return self.parts.path.rstrip("/").removesuffix("/v1") + path

    @property
    def base(self) -> str:
        """The URL in front of `/v1`."""
        return f"{self.parts.scheme}://{self.parts.netloc}{self.path('')}"

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection that opens with its first request."""
        secure = self.parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(self.parts.hostname or "", self.parts.port, timeout=timeout_s)
