"""A server that answers what the hub's client asks when it publishes a folder, and keeps what was sent."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_test"


@dataclass
class FakeHub:
    """What was published: repositories with their settings, and the files of each."""

    address: str = ""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        """The status and the JSON for a request."""
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            is_new = name not in self.repositories
            self.repositories.setdefault(name, asked)
            return (200 if is_new else 409), {"url": f"{self.address}/{name}"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        name, _, what = path.removeprefix("/api/models/").partition("/preupload/")
        if what:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return 200, {"files": files}
        name, _, what = path.removeprefix("/api/models/").partition("/commit/")
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.commits.append(value["summary"])
            else:
                self.files.setdefault(name, {})[value["path"]] = base64.b64decode(value["content"])
        return 200, {"commitUrl": f"{self.address}/{name}/commit/abc", "commitOid": "abc", "hookOutput": ""}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub on this machine, while the block runs."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, value = 401, {"error": "Invalid user token."}
            if self.headers["Authorization"] == f"Bearer {TOKEN}":
                status, value = hub.answer(self.path.partition("?")[0], body)
            self._write(status, value)

        def do_GET(self) -> None:
            self._write(200, {"id": "me/my-model", "siblings": []})

        def _write(self, status: int, value: Any) -> None:
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
