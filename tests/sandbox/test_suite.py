"""The suite of hostile and honest programs, at every level, and proof that it tests something."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sandbox import across, acts, hacks, programs, suite
from tests.sandbox.processes import as_nobody
from tests.sandbox.scene import Scene
from verizero import sandbox

LEVEL_2 = ["landlock", "seccomp", "uid"]


@pytest.fixture(scope="module", params=[list(sandbox.WALLS), LEVEL_2], ids=["level3", "level2"])
def pool(request: pytest.FixtureRequest) -> Iterator[sandbox.Pool]:
    """A pool at each level that this machine has."""
    with sandbox.Pool(workers=suite.WORKERS, walls=request.param) as made:
        yield made


def test_it_is_as_broad_as_promised() -> None:
    attacks = sum(map(len, acts.ALL.values())) + sum(map(len, programs.EXHAUST.values())) + len(programs.LINGER)
    assert attacks + len(hacks.STDIN) + len(hacks.FUNCTION) >= 176
    assert len(hacks.STDIN) + len(hacks.FUNCTION) >= 60
    assert len(programs.HONEST) >= 29
    assert across.count() >= 75


@pytest.mark.run
def test_no_act_gets_done(pool: sandbox.Pool) -> None:
    scene = Scene()
    try:
        assert suite.run_members(suite.act_trials(scene), pool) == []
        assert scene.harm() == []
    finally:
        scene.close()


@pytest.mark.run
def test_no_hack_passes(pool: sandbox.Pool) -> None:
    assert suite.run_members(suite.hack_trials(), pool) == []


@pytest.mark.run
def test_honest_programs_pass(pool: sandbox.Pool) -> None:
    assert suite.run_members(suite.honest_trials(), pool) == []


@pytest.mark.run
def test_nothing_lingers(pool: sandbox.Pool) -> None:
    with sandbox.Pool(workers=1, walls=pool._walls) as single:
        assert list(suite.linger_complaints(single)) == []


@pytest.mark.run
def test_no_program_takes_more_than_its_limits(pool: sandbox.Pool) -> None:
    assert suite.run_members(suite.exhaust_trials(pool.isolation), pool) == []


@pytest.fixture(scope="module")
def tools(pool: sandbox.Pool) -> Iterator[sandbox.Pool]:
    """A pool at each level with a shell, for sessions."""
    with sandbox.Pool(workers=1, walls=pool._walls, tools=sandbox.TOOLS) as made:
        yield made


@pytest.mark.run
@pytest.mark.parametrize("name", across.ALL)
def test_no_session_reaches_another(tools: sandbox.Pool, name: str) -> None:
    assert list(across.ALL[name](tools)) == []


@pytest.mark.run
def test_sessions_reach_each_other_without_walls() -> None:
    """Each wall is missed: without any, acts succeed; without Landlock, files are open; without seccomp, calls are."""
    failed, missed = [], dict[str, set[str]]()
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


@pytest.mark.run
def test_the_acts_work_without_walls(tmp_path: Path) -> None:
    """Without this control a stopped act proves nothing: a typing error may have stopped it."""
    scene = Scene()

    def attempt(named: tuple[str, str]) -> str:
        command = [sys.executable, "-I", "-S", "-c", scene.program(named[1])]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        return "" if "PWNED" in done.stdout else f"{named[0]}: {done.stderr[-200:]}"

    failed: list[str] = []
    try:
        with ThreadPoolExecutor(4) as threads:
            for table in acts.ALL.values():  # one table after the other: writes would spoil what reads look for
                control = [(name, code) for name, code in table.items() if name.startswith("*")]
                failed += filter(None, threads.map(attempt, control))
        assert scene.harm() != []
    finally:
        scene.close()
    # A kernel may lack one or the other (its own crypto, setting attributes); a host that refuses many is no control.
    assert len(failed) <= 4, failed


@pytest.mark.run
@pytest.mark.parametrize("walls", [list(sandbox.WALLS), LEVEL_2], ids=["level3", "level2"])
def test_an_ordinary_user_is_as_safe(walls: list[str]) -> None:
    """The whole suite as the user nobody, where we are root and a system interpreter is there for him."""
    assert "all as it must be" in as_nobody("-m", "tests.sandbox.suite", ",".join(walls))
