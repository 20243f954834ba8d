"""A model hub on this machine: the two paths that downloading asks for, with ranges."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """`files` of the one repository `org/name`; what was asked for is in `asked`."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files = dict(files)
        self.asked: list[tuple[str, str | None]] = []
        self.delay_s = 0.0  # after each 64 KiB
        self.ranges = True
        self.spoiled = False  # content that does not fit its checksum

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/models/org/name":
            self._json(200, _listing(self.server.files))
        elif path.startswith(f"/org/name/resolve/{COMMIT}/"):
            self._file(path.partition(f"{COMMIT}/")[2])
        else:
            self._json(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    def _json(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for key, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, name: str) -> None:
        data, wanted = self.server.files[name], self.headers.get("Range")
        self.server.asked.append((name, wanted))
        if self.server.spoiled:
            data = bytes(len(data))
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        partial = wanted is not None and self.server.ranges
        self.send_response(206 if partial else 200)
        part = data[start:] if partial else data
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        for at in range(0, len(part), 1 << 16):
            self.wfile.write(part[at : at + (1 << 16)])
            time.sleep(self.server.delay_s)


def _listing(files: Mapping[str, bytes]) -> object:
    def entry(name: str, data: bytes) -> dict[str, object]:
        made: dict[str, object] = {"rfilename": name, "size": len(data)}
        made["blobId"] = hashlib.sha1(b"blob" + data).hexdigest()
        if name.endswith((".safetensors", ".gguf")):
            sums = hashlib.sha256(data).hexdigest()
            made["lfs"] = {"sha256": sums, "size": len(data), "pointerSize": 134}
        return made

    siblings = [entry(name, data) for name, data in files.items()]
    return {"id": "org/name", "modelId": "org/name", "sha": COMMIT, "siblings": siblings}


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    with FakeHub(files) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()
