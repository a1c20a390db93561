"""The suite of hostile and honest programs, at every level, and proof that it tests something."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.sandbox import across, programs, suite
from tests.sandbox.conftest import LEVEL_2
from tests.sandbox.processes import as_nobody
from tests.sandbox.scene import Scene
from verizero import sandbox

pytestmark = pytest.mark.run


def test_no_program_passes_that_must_not_and_honest_ones_do(walls):
    assert suite.program_complaints(walls) == []


def test_nothing_lingers(level):
    assert list(suite.linger_complaints(level)) == []


@pytest.mark.parametrize("name", across.ALL)
def test_no_session_reaches_another(tools, name):
    assert list(across.ALL[name](tools)) == []


def test_sessions_reach_each_other_without_walls():
    """Each wall is missed: without any, acts succeed; without Landlock, files are open; without seccomp, calls are."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user is refused some of the acts without any wall; root is not")
    failed, missed = [], {}
    with sandbox.Pool(workers=1, walls=[], min_level=0) as pool:
        for name, code in across.PYTHON.items():
            pair = across.Pair(pool)
            if name.startswith("*") and not across.succeeds(pair, code):
                failed.append(name)
            pair.close()
    assert failed == []
    for wall in ("landlock", "seccomp"):
        with sandbox.Pool(workers=1, walls=[wall], min_level=0) as pool:
            missed[wall] = {c.removeprefix("across: ") for c in across.act_complaints(pool)}
    assert {"*read by path", "*write by path", "*enter"} <= missed["seccomp"] - missed["landlock"]
    assert {"*slow it", "*abstract socket", "keyring"} <= missed["landlock"] - missed["seccomp"]


def test_a_process_that_cannot_be_halted_ends_with_its_call():
    with sandbox.Pool(workers=1, walls=[], min_level=0) as pool, across.open_session(pool) as session:
        across.within(session, across.PYTHON["ask to be traced"], wall_s=1)
        assert session.python("print(1)").stdout == "1\n"


def test_the_acts_work_without_walls(tmp_path):
    """Without this control a stopped act proves nothing: a typing error may have stopped it."""
    scene = Scene()

    def attempt(act):
        name, code = act
        command = [sys.executable, "-I", "-S", "-c", scene.program(code)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        return "" if "PWNED" in done.stdout else f"{name}: {done.stderr[-200:]}"

    failed = []
    try:
        with ThreadPoolExecutor(4) as threads:
            for table in programs.ACTS.values():  # one table after the other: writes would spoil what reads look for
                failed += filter(None, threads.map(attempt, [act for act in table.items() if act[0].startswith("*")]))
        assert scene.harm() != []
    finally:
        scene.close()
    # A kernel may lack one or the other (its own crypto, setting attributes); a host that refuses many is no control.
    assert len(failed) <= 4, failed


@pytest.mark.nightly
@pytest.mark.parametrize("walls", [sandbox.WALLS, LEVEL_2], ids=["level3", "level2"])
def test_an_ordinary_user_is_as_safe(walls):
    """The suite as the user nobody, where we are root and a system interpreter is there for him."""
    assert "all as it must be" in as_nobody("-m", "tests.sandbox.suite", ",".join(walls))
