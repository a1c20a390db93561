"""Files that the policy reads: those of a folder and of a task, and attempts to leave the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.environments.talk import made, played, texts
from verizero.pipeline.environments.base import load
from verizero.pipeline.environments.tools.base import WrongCall
from verizero.pipeline.environments.tools.base import load as load_tools
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.types import Prompt

PROMPT = Prompt("p", "q", "environment", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "shown"
    (inner / "deep").mkdir(parents=True)
    (inner / "a.txt").write_text("first\nsecond line\n")
    (inner / "deep" / "b").write_text("second too")
    (inner / "bytes").write_bytes(b"\xff\xfeok")
    (tmp_path / "secret").write_text("the password")
    (inner / "link").symlink_to(tmp_path / "secret")
    (inner / "outside").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(inner / "pipe")
    return tmp_path


def test_a_folder_is_listed_read_and_searched(folder: Path) -> None:
    tools = load_tools("files").bind({"folder": "shown"}, folder).make(PROMPT).tools
    assert tools["list"].answer({}) == "a.txt\nbytes\ndeep/b"
    assert tools["read"].answer({"name": "deep/b"}) == "second too"
    assert tools["read"].answer({"name": "bytes"}) == "??ok"
    assert tools["search"].answer({"text": "second"}) == "a.txt:2: second line\ndeep/b:1: second too"
    assert tools["search"].answer({"text": "password"}) == "no hits"


@pytest.mark.parametrize(
    "name",
    ["link", "outside/secret", "../secret", "/etc/passwd", "deep/../../secret", "./a.txt", "pipe", "deep", "", "a\x00b",
     "x" * 5000],
)  # fmt: skip
def test_nothing_outside_is_read(folder: Path, name: str) -> None:
    tools = load_tools("files").bind({"folder": "shown"}, folder).make(PROMPT).tools
    with pytest.raises(WrongCall, match="no file is called") as caught:
        tools["read"].answer({"name": name})
    assert "password" not in str(caught.value)


def test_a_file_that_becomes_a_link_later_is_not_followed(folder: Path) -> None:
    tools = load_tools("files").bind({"folder": "shown"}, folder).make(PROMPT).tools
    (folder / "shown" / "a.txt").unlink()
    (folder / "shown" / "a.txt").symlink_to(folder / "secret")
    with pytest.raises(OSError, match=r"a\.txt"):
        tools["read"].answer({"name": "a.txt"})


def test_limits(folder: Path) -> None:
    tools = load_tools("files").bind({"folder": "shown", "max_characters": 5, "max_hits": 1}, folder).make(PROMPT).tools
    assert tools["read"].answer({"name": "a.txt"}) == "first\n..."
    assert tools["search"].answer({"text": "s"}) == "a.txt:1: first\n..."
    with pytest.raises(DataError, match="more than max_files = 2"):
        load_tools("files").bind({"folder": "shown", "max_files": 2}, folder).make(PROMPT)


def test_wrong_parameters(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        load_tools("files").bind({"folder": "nowhere"}, folder)
    with pytest.raises(ConfigError, match="give a folder or files, not both"):
        load_tools("files").bind({"folder": "shown", "files": {}}, folder)
    with pytest.raises(DataError, match=r"answer.files: expected an object"):
        load("files").bind().make(Prompt("p", "q", "environment", "42"), 1, 2)
    with pytest.raises(DataError, match=r"answer.answer: expected a text or number"):
        load("files").bind().make(Prompt("p", "q", "environment", {"files": {"a": "b"}}), 1, 2)


def test_the_environment_follows_the_rows_files() -> None:
    reference = {"files": {"a": "see b", "b": "see kc", "kc": "42"}, "answer": 42}
    moves = [("read", {"name": "a"}), ("read", {"name": "c"}), ("read", {"name": "kc"}), "42"]
    replies = played(made("files", reference), moves)
    assert texts(replies) == ["see b", "no file is called c. did you mean kc?", "42"]
    assert [u.wrong for r in replies for u in r.uses] == [False, True, False]
    assert replies[-1].outcome.is_correct
    assert not played(made("files", reference), ["41"])[-1].outcome.is_correct
