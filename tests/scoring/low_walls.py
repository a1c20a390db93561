"""A machine whose kernel has no walls for the sandbox."""

from __future__ import annotations

import pytest

from verizero.sandbox.isolation import Isolation


def low_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the sandbox find nothing but limits on this machine."""
    stands = {"namespaces": False, "landlock": False, "seccomp": False, "rlimits": True}
    monkeypatch.setattr(
        "verizero.sandbox.pool.examine", lambda *_: Isolation(1, stands, {"landlock": "not in this kernel"})
    )
