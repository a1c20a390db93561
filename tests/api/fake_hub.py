"""A server that answers what the hub's client asks when it publishes a folder, and keeps what was sent."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.json_server import serving

TOKEN = "hf_test"


@dataclass
class FakeHub:
    """What was published: repositories with their settings, and the files of each."""

    address: str = ""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    def answer(self, path: str, body: bytes, key: str | None) -> tuple[int, Any]:
        """The status and the JSON for a request."""
        path = path.partition("?")[0]
        if not body:
            return 200, {"id": "me/my-model", "siblings": []}
        if key != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid user token."}
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
    with serving(hub.answer) as hub.address:
        yield hub
