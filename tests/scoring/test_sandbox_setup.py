"""The sandbox of a run as its recipe says: refused at the start, at a service or here, and described."""

import pytest

from tests.scoring.fakes import low_walls
from verizero import sandbox
from verizero.pipeline.config.sandbox import SandboxConfig
from verizero.pipeline.errors import ConfigError, IsolationError
from verizero.pipeline.scoring.sandbox_setup import close_sandbox, open_sandbox
from verizero.sandbox.languages import LANGUAGES
from verizero.sandbox.serve import SandboxService
from verizero.sandbox.settings import SandboxSettings, current
from verizero.verifiers.base import load

pytestmark = pytest.mark.usefixtures("default_sandbox")
DEAD = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def server():
    with sandbox.Pool(workers=1, walls=["landlock", "seccomp", "uid"]) as pool:
        with SandboxService(pool, token="secret") as made:
            yield made


def opened(verifier="code", params=None, **settings):
    """Return what is written into run.json, and the warnings, of a run with that verifier."""
    warnings = []
    return open_sandbox(SandboxConfig(**settings), [load(verifier).bind(params)], warnings.append), warnings


@pytest.mark.run
def test_programs_run_as_the_recipe_says_until_the_sandbox_is_closed():
    isolation, _ = opened(workers=1, cpu_s=0.5, memory_mib=100, max_tests=7)
    assert current() == SandboxSettings(sandbox.Limits(cpu_s=0.5, memory_mib=100, max_tests=7), workers=1)
    assert sandbox.default_pool().size == 1
    assert isolation["level"] == sandbox.probe().level
    close_sandbox()
    assert current() == SandboxSettings()


def test_sessions_and_services_are_refused_together():
    config = SandboxConfig(url=DEAD)
    with pytest.raises(ConfigError, match=r"sandbox\.url: .* the tool `session` keeps a state; drop sandbox\.url"):
        open_sandbox(config, [], lambda _: None, played={"python", "session"})


def test_a_run_without_programs_starts_no_worker(monkeypatch):
    monkeypatch.setattr("verizero.sandbox.process.start", lambda *_: pytest.fail("a worker was started"))
    assert opened("exact") == (None, [])


def test_walls_below_the_recipes_level_are_refused_and_an_accepted_level_is_written_down(
    monkeypatch,
):
    low_walls(monkeypatch)
    with pytest.raises(IsolationError, match=r"landlock .not in this kernel.*sandbox.min_level"):
        opened(workers=1)
    isolation, _ = opened(workers=1, min_level=1)
    assert (isolation["level"], isolation["stands"]["landlock"]) == (1, False)


def test_a_service_is_asked_for_its_level_and_told_the_token(server, monkeypatch):
    monkeypatch.setenv("MINE", "secret")
    monkeypatch.setattr("sandbox.default_pool", lambda: pytest.fail("nothing runs on this machine"))
    isolation, (warning,) = opened(url=[DEAD, server.address + "/"], token_env="MINE")
    assert isolation == {"level": 2, "services": {server.address: 2}}
    assert current().urls == (DEAD, server.address)
    assert DEAD in warning
    assert server.address not in warning


@pytest.mark.parametrize(
    ("settings", "error", "named"),
    [
        ({"min_level": 3, "token_env": "MINE"}, IsolationError, "sandbox.min_level is 3"),
        ({}, ConfigError, "sandbox.token_env"),
        ({"token_env": "OTHER"}, ConfigError, "'OTHER'"),
        ({"url": DEAD, "token_env": "MINE"}, IsolationError, DEAD),
    ],
)
def test_services_that_cannot_be_used_are_refused(
    settings,
    error,
    named,
    server,
    monkeypatch,
):
    monkeypatch.setenv("MINE", "secret")
    with pytest.raises(error, match=named):
        opened(**{"url": server.address, **settings})


def test_a_service_must_have_the_language_and_nothing_is_needed_here(server, monkeypatch):
    monkeypatch.setenv("MINE", "secret")
    settings = {"url": server.address, "token_env": "MINE", "workers": 1}
    isolation, _ = opened("unit_tests", **settings)
    assert isolation["services"] == {server.address: 2}
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(IsolationError, match=f"{server.address} has no bash"):
        opened("code", {"language": "bash"}, **settings)
    low_walls(monkeypatch)
    close_sandbox()
    assert opened("unit_tests", **settings)[0] == isolation, "the walls of this machine do not matter"


def test_without_a_service_a_language_needs_its_tool_here(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(IsolationError, match=LANGUAGES["bash"].tool):
        opened("code", {"language": "bash"}, workers=1)
