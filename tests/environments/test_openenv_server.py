"""Episodes at a server of the package OpenEnv itself: equal transcripts, known scores, capacity, a killed server."""

import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.environments.packages import venv_with
from tests.environments.talk import said
from tests.processes import PATIENCE_S, until
from verizero.pipeline.environments.base import load
from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.host.network import free_port
from verizero.pipeline.types import Prompt

pytestmark = [pytest.mark.run, pytest.mark.nightly]
SERVER = Path(__file__).with_name("openenv_server.py")
SESSIONS = 4
PROMPT = Prompt("p", "", "environment", None)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return venv_with(tmp_path_factory.mktemp("venv") / "openenv", "openenv-core==0.3.0") / "bin" / "python"


@pytest.fixture(scope="module")
def server(python):
    port = free_port()
    process = subprocess.Popen([python, "-P", SERVER, str(port), str(SESSIONS)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        assert process.poll() is None
        try:
            return bool(urllib.request.urlopen(f"{url}/health", timeout=5).status == 200)
        except OSError:
            return False

    until(is_up, "the server")
    yield url, process
    process.kill()
    process.wait()


def halving(url: str, seed: int, **params: Any) -> list[Any]:
    """Play the game by halving the interval: never wrong within five tries but for one number of 32."""
    environment = load("openenv").bind({"url": url, **params}).make(PROMPT, seed, 2)
    shown: list[Any] = [environment.start()]
    low, high = 1, 32
    while True:
        guess = (low + high) // 2
        reply = environment.step(said(str(guess)))
        shown.append(reply)
        if reply.done:
            environment.close()
            return shown
        low, high = (guess + 1, high) if reply.messages[0].content == "higher" else (low, guess - 1)


def test_equal_seeds_give_equal_transcripts_and_a_scripted_player_its_score(server):
    url, _ = server
    games = [halving(url, seed) for seed in range(12)]
    assert [halving(url, seed) for seed in range(12)] == games
    assert len({repr(g) for g in games}) > 5
    with ThreadPoolExecutor(SESSIONS) as threads:
        assert list(threads.map(lambda seed: halving(url, seed), range(12))) == games
    # 32 is the one number of 32 that this player needs six tries for.
    assert {g[-1].outcome.score for g in games} <= {0.0, 1.0}
    assert sum(g[-1].outcome.score for g in games) >= 11


def test_a_killed_server_is_a_failure(server):
    url, process = server
    environment = load("openenv").bind({"url": url}).make(PROMPT, 1, 2)
    environment.start()
    with pytest.raises(EnvironmentFailed, match="is lost: ConnectionClosed"):
        environment.step(said("-1"))
    environment.close()
    assert process.wait(PATIENCE_S) == 1
    with pytest.raises(EnvironmentFailed, match="has no schema"):
        halving(url, 1)
