"""Child processes of our own, started in a folder whose files have the names of our modules and of Python's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import code_files, relative
from verizero.pipeline.host.child import SAFE_PATH, leave_safe_path, module_command

NAMES = ("flows", "pipeline", "verifiers", "sandbox", "json", "random", "typing", "logging", "prefect", "torch", "yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder in which each of the names is a file that cannot be imported."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the working folder was imported')\n")
    return tmp_path


@pytest.mark.run
def test_a_module_is_ours_whatever_the_working_folder_has(folder: Path) -> None:
    done = subprocess.run([*module_command("verizero.pipeline.seeds")], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_our_modules_are_started_by_that_command() -> None:
    plain = re.compile(r'sys\.executable[^\n]*"-m"')
    assert [p for p in code_files() if relative(p) != "pipeline/host/child.py" and plain.search(p.read_text())] == []


def test_children_begin_in_one_place() -> None:
    """But for programs that are waited for where they are started, and the sandbox, which knows nothing of ours."""
    begun = re.compile(r"\bPopen\(")
    files = [relative(p) for p in code_files() if begun.search(p.read_text())]
    assert files == ["pipeline/host/child.py", "sandbox/process.py"]


def test_programs_of_the_user_import_what_lies_next_to_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SAFE_PATH, "1")
    leave_safe_path()
    (tmp_path / "agent.py").write_text("import parts; print(parts.X)")
    (tmp_path / "parts.py").write_text("X = 3")
    done = subprocess.run([sys.executable, "agent.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "3\n"
