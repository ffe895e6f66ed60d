"""A Hugging Face hub on the loopback interface, with the few endpoints that its client uses."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class LocalHub:
    """Repositories, name -> path -> bytes (names of data sets begin with `datasets/`), error
    responses by name, the only valid token, and the requests that came."""

    address: str = ""
    repositories: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
    errors: dict[str, tuple[int, dict[str, str]]] = dataclasses.field(default_factory=dict)
    token: str = "hf_valid"
    requests: list[str] = dataclasses.field(default_factory=list)
    fetched: list[str] = dataclasses.field(default_factory=list)

    def commit(self, name: str) -> str:
        """Returns the only commit, `main`."""
        return hashlib.sha1(name.encode()).hexdigest()

    def answer(
        self, method: str, path: str, authorization: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers and content of the response."""
        self.requests.append(f"{method} {path}")
        if authorization not in (None, f"Bearer {self.token}"):
            message = "Invalid credentials in Authorization header"
            return 401, {"X-Error-Message": message}, b"{}"
        path = path.replace("/api/datasets/", "/api/models/datasets/")
        name = r"((?:datasets/)?[^/]+/[^/]+)"
        api = re.fullmatch(rf"/api/models/{name}(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(rf"/{name}/resolve/([^/]+)/(.+)", path)
        match = api or file
        if match is None:
            return 404, {}, b"{}"
        name = match[1]
        if name in self.errors:
            status, headers = self.errors[name]
            return status, headers, b"{}"
        if name not in self.repositories:
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        files = self.repositories[name]
        revision = match[2] if file else match[3] or "main"
        if revision not in ("main", self.commit(name)):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        if file:
            return self._file(method, name, files, file[3])
        if api and api[2] == "tree":
            entries = [
                {"type": "file", "path": path, "size": len(data), "oid": _digest(data)}
                for path, data in files.items()
            ]
            return 200, {}, json.dumps(entries).encode()
        siblings = [{"rfilename": path} for path in files]
        info: dict[str, Any] = {"id": name, "sha": self.commit(name), "siblings": siblings}
        return 200, {}, json.dumps(info).encode()

    def _file(
        self, method: str, name: str, files: dict[str, bytes], path: str
    ) -> tuple[int, dict[str, str], bytes]:
        headers = {"X-Repo-Commit": self.commit(name)}
        if path not in files:
            return 404, headers | {"X-Error-Code": "EntryNotFound"}, b"{}"
        if method == "GET":
            self.fetched.append(path)
        return 200, headers | {"ETag": f'"{_digest(files[path])}"'}, files[path]


@contextlib.contextmanager
def serve() -> Iterator[LocalHub]:
    """Runs a hub for the duration of the block."""
    hub = LocalHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            status, headers, content = hub.answer(
                self.command, path, self.headers.get("Authorization")
            )
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def environment(home: Path, endpoint: str) -> dict[str, str]:
    """Returns the environment of a process that uses the hub at `endpoint` and caches in `home`."""
    return os.environ | {
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
    }
