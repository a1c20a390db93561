"""A working folder of a user: a tiny model, questions and answers."""

import json

import pytest

from tests.api.tiny import ROWS, save_tiny
from tests.stages.conftest import pageless  # noqa: F401


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder of the test, with a tiny model, questions and answers."""
    save_tiny(tmp_path / "tiny")
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.chdir(tmp_path)
    return tmp_path
