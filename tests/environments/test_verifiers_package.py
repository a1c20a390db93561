"""Tasks of a package of the library `verifiers`, played by the library: known scores, failures, kills, nothing left."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.environments.packages import venv_with
from tests.environments.talk import said
from tests.processes import commands, others, until
from verizero.pipeline.environments.base import Environment, load
from verizero.pipeline.environments.verifiers_package import RUNNER
from verizero.pipeline.errors import ConfigError, DataError, EnvironmentFailed
from verizero.pipeline.types import Prompt, Verdict

pytestmark = [pytest.mark.run, pytest.mark.nightly]
TASKS = Path(__file__).with_name("verifiers_tasks")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return str(venv_with(tmp_path_factory.mktemp("venv") / "library", "verifiers==0.4.0"))


def made(python: str, package: str = "double_it", index: Any = 1, **params: Any) -> Environment:
    params = {"taskset": {"first": 3}, "reward_range": [0, 2], **params}
    bound = load("verifiers_package").bind(
        {"python": python, "package": package, "variables": {"PYTHONPATH": str(TASKS)}, **params}
    )
    return bound.make(Prompt("p", "", "environment", index), 1, 2)


def play(environment: Environment, *moves: str) -> tuple[list[list[tuple[str, str]]], Verdict | None]:
    """Return what the policy was shown before each move, and the verdict."""
    try:
        shown = [[(m.role, m.content) for m in environment.start().messages]]
        for move in moves:
            reply = environment.step(said(move))
            if reply.done:
                return shown, reply.outcome
            shown.append([(m.role, m.content) for m in reply.history or ()])
        return shown, None
    finally:
        environment.close()


def runners() -> list[int]:
    return [process for process, words, _ in others() if str(RUNNER) in words]


def test_several_turns_and_the_known_score_of_the_last(python):
    """Of a right answer; that of a wrong one, in tests/test_wheel.py."""
    shown, verdict = play(made(python, "double_twice", "2"), "11", "10")
    assert shown == [
        [("system", "be short"), ("user", "twice 5?")],
        [("system", "be short"), ("user", "twice 5?"), ("assistant", "11"), ("user", "again")],
    ]
    assert verdict == Verdict("graded", 1.0, "reward 2: user_closed")


def test_an_error_in_the_trace_is_a_failure(python):
    with pytest.raises(EnvironmentFailed, match=r"double_it: .*RuntimeError: the grader broke"):
        play(made(python), "break the grader")


def test_a_killed_program_is_a_failure_and_nothing_is_left(python):
    environment = made(python)
    environment.start()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    # The program under its watcher, which names the program in its own command line too.
    programs = [p for p in runners() if "python" in os.readlink(f"/proc/{p}/exe")]
    mine = [p for p in programs if any(python in words.split()[0] for words in commands([p]))]
    threading.Timer(2.0, lambda: [os.kill(p, signal.SIGKILL) for p in mine]).start()
    with pytest.raises(EnvironmentFailed, match=r"was ended from outside .status -9"):
        environment.step(said("hang"))
    environment.close()
    until(lambda: not runners(), "the end of the programs")
    after = len(os.listdir("/proc/self/fd")), threading.active_count()
    assert after <= before


def test_what_cannot_begin_says_why(python, tmp_path):
    with pytest.raises(EnvironmentFailed, match="double_it has no task 7"):
        play(made(python, index=7))
    with pytest.raises(DataError, match="expected the number of a task, got 'x'"):
        made(python, index="x")
    with pytest.raises(ConfigError, match="no interpreter at"):
        made(str(tmp_path / "none"))


def test_rows_for_tasks(python):
    program = Path(python) / "bin" / "python"
    command = [program, "-P", RUNNER, '{"package": "double_it", "taskset": {"first": 8}}', "--rows", "9"]
    ended = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(TASKS)})
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(r["id"], r["answer"]) for r in rows] == [("double_it/0", 0), ("double_it/1", 1)], ended.stderr


def test_without_an_interpreter_the_library_must_be_installed_here():
    with pytest.raises(ConfigError, match=r"python: the library 'verifiers' is not installed here; .*virtual env"):
        load("verifiers_package").bind({"package": "double_it"})
