"""Environments in other processes: equal transcripts, deaths, stuck steps, broken lines, and nothing left behind."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import venv
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.environments.talk import said
from tests.processes import alive, until
from verizero.pipeline.environments.hosts import EnvironmentHost, EnvironmentSpec, ProcessHost, open_host
from verizero.pipeline.errors import ConfigError, EnvironmentFailed
from verizero.pipeline.types import Prompt

pytestmark = pytest.mark.integration
PROMPT = Prompt("p", "q?", "environment", {"deep": [1, "é"]}, system="be kind")


@pytest.fixture
def folder(tmp_path):
    shutil.copy(Path(__file__).with_name("far_games.py"), tmp_path)
    return tmp_path


def chosen(folder: Path) -> EnvironmentSpec:
    return EnvironmentSpec(path="far_games.py:echo", params={"log": str(folder / "log"), "n": 1}, base=folder)


@pytest.fixture
def place(folder):
    opened = open_host({"python": sys.executable}, chosen(folder), step_s=20)
    yield opened
    opened.close()


def tell(environment, text: str) -> str:
    (message,) = environment.step(said(text)).messages
    return message.content


def begun(place: EnvironmentHost, sample: int = 2):
    environment = place.make(PROMPT, 1, sample)
    environment.start()
    return environment


def pids(place: EnvironmentHost) -> list[int]:
    assert isinstance(place, ProcessHost)
    return [far._process.pid for far in place._running]


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def is_alive(pid: int) -> bool:
    return bool(alive([pid]))


def ends(pid: int) -> bool:
    """Wait for the end of a process that was killed, or whose pipe was closed."""
    return until(lambda: not is_alive(pid), "its end", every_s=0.02)


@pytest.mark.parametrize("name", ["guess", "sql"])
def test_a_process_gives_the_transcript_of_this_process(name):
    moves = {
        "guess": ["16", "\x00\ud800<think>", "8", "4"],
        "sql": [("query", {"statement": "select b from t"}), ("x", {}), "select a from t"],
    }
    answers = {"guess": 6, "sql": {"setup": "create table t(a); insert into t values (1)", "query": "select a from t"}}
    prompt = Prompt("p", "q", "environment", answers[name])
    transcripts = []
    for where in ("here", "process"):
        opened = open_host(where, EnvironmentSpec(name=name), step_s=60)
        environment = opened.make(prompt, 3, 4)
        start = environment.start()
        transcripts.append([start, *(environment.step(said(m)) for m in moves[name])])
        environment.close()
        opened.close()
    assert transcripts[0] == transcripts[1]


def test_a_foreign_interpreter_gets_json_and_finds_its_own_packages(folder):
    # An environment of its own, with a package that has the name of one of ours.
    venv.create(folder / "venv", with_pip=False)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "verifiers").mkdir()
    (site / "verifiers" / "__init__.py").write_text("")
    with_own = open_host({"python": "venv/bin/python"}, chosen(folder), step_s=20)
    try:
        environment = with_own.make(PROMPT, 1, 2)
        start = environment.start()
        prompt = {
            "id": "p",
            "question": "q?",
            "reference": {"deep": [1, "é"]},
            "domain": "default",
            "system": "be kind",
        }
        assert eval(start.messages[0].content) == {
            "params": {"log": str(folder / "log"), "n": 1},
            "prompt": prompt,
            "seeds": [1, 2],
        }
        reply = environment.step(said("hello"))
        assert (reply.messages[0].content, reply.reward) == ("1 hello", 0.5)
        # Its own `verifiers`, none of our packages, and no standard input on which requests come.
        assert tell(environment, "modules") == f"{site}/verifiers/__init__.py False ''"
        last = environment.step(said("stop"))
        assert (last.done, last.outcome.score) == (True, 0.25)
        environment.close()
        environment.close()
        assert (folder / "log").read_text() == "closed 2\n"
    finally:
        with_own.close()


@pytest.mark.parametrize("wants", [True, False])
def test_sizes_of_turns_are_told_to_those_who_ask(folder, wants):
    which = EnvironmentSpec(path="far_games.py:Sized", params={"wants": wants}, base=folder)
    with closing(open_host({"python": sys.executable}, which)) as place:
        environment = place.make(Prompt("p", "q", "exact", 1), 1, 2)
        environment.start()
        assert environment.takes_unread
        for size in ((5, 2, False), (9, 1, True)):
            environment.count_tokens(*size)
            told = tell(environment, "hm")
        assert told == (repr([[5, 2, False], [9, 1, True]]) if wants else "[]")
        environment.close()


def test_many_episodes_share_a_process_and_are_kept_apart(place):
    def play(sample: int) -> list[str]:
        environment = begun(place, sample)
        heard = [tell(environment, f"{sample} {i}") for i in range(20)]
        environment.close()
        return heard

    with ThreadPoolExecutor(16) as threads:
        heard = list(threads.map(play, range(64)))
    assert heard == [[f"{i + 1} {sample} {i}" for i in range(20)] for sample in range(64)]
    assert len(pids(place)) == 1


def test_a_killed_process_fails_its_episodes_and_the_next_has_another(place):
    first, second = begun(place, 1), begun(place, 2)
    (victim,) = pids(place)
    child = int(tell(first, "child"))
    os.kill(victim, signal.SIGKILL)
    for environment in (first, second):
        with pytest.raises(EnvironmentFailed, match=r"environment 'far_games.py:echo': its process"):
            tell(environment, "hello")
    assert ends(child), "what it began goes with it"
    assert tell(begun(place, 3), "hello") == "1 hello"
    assert victim not in pids(place)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("die", "its process ended; it wrote:.*last words"),
        ("raise", "KeyError: 'broken'"),
        ("garbage", "a line that is no answer: b'this is no answer"),
        ("silent", "has no message although the episode is not done"),
        ("forge", "a message of the assistant"),
        ("nan", "ValueError: Out of range float values"),
    ],
)
def test_what_breaks_is_named(place, word, words):
    environment = begun(place)
    with pytest.raises(EnvironmentFailed, match=words):
        list(map(environment.step, [said(word), said("after garbage")]))
    environment.close()
    assert tell(begun(place), "again") == "1 again"


def test_a_stuck_step_fails_its_episode_and_the_process_ends_with_its_last(folder):
    place = open_host({"python": sys.executable}, chosen(folder), step_s=1.0)
    stuck, other = begun(place, 1), begun(place, 2)
    (pid,) = pids(place)
    with pytest.raises(EnvironmentFailed, match="took more than 1 s to step"):
        tell(stuck, "sleep 60")
    fresh = begun(place, 3)
    assert pids(place)[0] == pid
    assert len(pids(place)) == 2
    assert tell(other, "hello") == "1 hello"
    stuck.close()
    assert is_alive(pid)
    other.close()
    assert not is_alive(pid)
    assert tell(fresh, "hello") == "1 hello"
    place.close()


def test_a_megabyte_crosses_both_ways(place):
    environment = begun(place)
    text = "ab\ud800\x00\n" * 200_000
    assert tell(environment, text) == f"1 {text}"


def test_nothing_is_left_after_close(folder):
    before = held()
    for _ in range(3):
        place = open_host({"python": sys.executable}, chosen(folder), step_s=20)
        environments = [begun(place, i) for i in range(20)]
        child = int(tell(environments[0], "child"))
        assert is_alive(child)
        for environment in environments[:10]:
            environment.close()
        (pid,) = pids(place)
        place.close()
        assert not is_alive(pid)
        assert ends(child)
        with pytest.raises(EnvironmentFailed, match="ended"):
            tell(environments[15], "hello")
        with pytest.raises(EnvironmentFailed, match="its host is closed"):
            begun(place)
    assert held() == before
    closed = (folder / "log").read_text().splitlines()
    assert sorted(closed) == sorted(f"closed {i}" for i in range(20) for _ in range(3)), "open ones too"


def test_it_dies_with_the_process_that_began_it(folder):
    code = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from verizero.pipeline.environments.hosts import EnvironmentSpec, open_host\n"
        "from verizero.pipeline.types import Prompt\n"
        f"spec = EnvironmentSpec(path='far_games.py:echo', params={{'log': '/dev/null'}}, base=Path({str(folder)!r}))\n"
        "place = open_host({'python': sys.executable}, spec)\n"
        "episode = place.make(Prompt('p', 'q', 'environment', None), 1, 2)\nepisode.start()\n"
        "print(place._running[0]._process.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    assert ends(pid)


def test_what_cannot_begin_says_why(folder):
    with pytest.raises(ConfigError, match="no parameter 'trys'"):
        open_host("process", EnvironmentSpec(name="guess", params={"trys": 1}))
    for choice, python, words in (
        (chosen(folder), "./no-python", "cannot be started: No such file"),
        (EnvironmentSpec(path="nothing.py:echo", base=folder), sys.executable, "looked for .*nothing.py"),
        (EnvironmentSpec(path="far_games.py:nothing", base=folder), sys.executable, "AttributeError"),
    ):
        place = open_host({"python": python}, choice)
        with pytest.raises(EnvironmentFailed, match=words):
            place.make(PROMPT, 1, 2)
        place.close()
