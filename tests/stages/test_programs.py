"""The sandbox of a run, settled by its recipe: refused at the start, at a service or here, and written down."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import sandbox
from pipeline.errors import ConfigError, IsolationError
from pipeline.run.fingerprints import differences, recipe_fields
from pipeline.run.session import Session
from pipeline.stages.programs import close_sandbox, open_sandbox
from pipeline.stages.train import opened
from sandbox.isolation import Isolation
from sandbox.languages import LANGUAGES
from sandbox.serve import make_server
from tests.stages.test_rl import Heard
from tests.stages.tiny import tiny
from verifiers._sandbox_settings import SandboxSettings, current
from verifiers.base import load

CODE = [{"id": i, "question": f"{i}?", "answer": {"tests": [{"input": "", "output": str(i)}]}} for i in range(3)]


@pytest.fixture(autouse=True)
def back_to_default() -> Iterator[None]:
    yield
    close_sandbox()


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    with sandbox.Pool(workers=1, walls=["landlock", "seccomp", "uid"]) as pool:
        made = make_server(pool, port=0, token="secret")
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield made
        made.shutdown()
        made.server_close()


@contextmanager
def session_of(folder: Path, verifier: str = "code", **settings: Any) -> Iterator[Session]:
    """A session whose rows name that verifier."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CODE))
    data = {"train": [{"file": "rows.jsonl", "verifier": verifier}], "evaluation": []}
    config = tiny({"stages": ["rl"], "sft": None, "data": data, "sandbox": settings})
    with opened(config, folder, folder / "run", "auto", Heard()) as session:
        yield session


def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def low_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which only limits stand."""
    stands = {"namespaces": False, "landlock": False, "seccomp": False, "rlimits": True}
    monkeypatch.setattr("sandbox.pool.examine", lambda *_: Isolation(1, stands, {"landlock": "not in this kernel"}))


def test_a_session_settles_what_the_recipe_says_and_the_next_begins_anew(tmp_path: Path) -> None:
    with session_of(tmp_path, workers=1, cpu_s=0.5, memory_mib=100, max_tests=7) as session:
        assert current() == SandboxSettings(sandbox.Limits(cpu_s=0.5, memory_mib=100, max_tests=7), workers=1)
        assert sandbox.default_pool().size == 1
        bound = session.scorer.bound["code"]
        assert getattr(bound, "params").limits().cpu_s == 0.5  # noqa: B009
        written = json.loads((tmp_path / "run" / "run.json").read_text())["isolation"]
        assert written == {k: v if k == "level" else dict(v) for k, v in written.items()}
        assert written["level"] == sandbox.probe().level
    assert current() == SandboxSettings()


def test_a_run_without_programs_starts_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.process.start", lambda *_: pytest.fail("a worker was started"))
    with session_of(tmp_path, "exact"):
        assert json.loads((tmp_path / "run" / "run.json").read_text())["isolation"] is None


def test_below_its_level_a_run_is_refused_before_a_policy_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low_walls(monkeypatch)
    monkeypatch.setattr("pipeline.run.build.build_policy", lambda *_: pytest.fail("too late"))
    with pytest.raises(IsolationError, match=r"landlock .not in this kernel.*set sandbox.min_level to 1"):
        with session_of(tmp_path, workers=1):
            pass
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_run_that_accepts_the_level_goes_on_and_writes_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low_walls(monkeypatch)
    with session_of(tmp_path, workers=1, min_level=1):
        written = json.loads((tmp_path / "run" / "run.json").read_text())["isolation"]
    assert (written["level"], written["stands"]["landlock"]) == (1, False)


def test_a_service_is_asked_for_its_level_and_told_the_token(
    tmp_path: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "secret")
    monkeypatch.setattr("sandbox.default_pool", lambda: pytest.fail("nothing runs on this machine"))
    dead = "http://127.0.0.1:9"
    with session_of(tmp_path, url=[dead, url(server) + "/"], token_env="MINE") as session:
        assert session.isolation == {"level": 2, "services": {url(server): 2}}
        assert current().urls == (dead, url(server))
        assert any(dead in line and "do not answer" in line for line in session.progress.lines)  # type: ignore[attr-defined]
    for file in ("run.json", "recipe.yaml"):
        assert "secret" not in (tmp_path / "run" / file).read_text()


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"min_level": 3, "token_env": "MINE"}, IsolationError, "stands at level 2 and sandbox.min_level is 3"),
        ({}, ConfigError, "refuses the token; set sandbox.token_env"),
        ({"token_env": "OTHER"}, ConfigError, "'OTHER', which is not set"),
        ({"url": "http://127.0.0.1:9", "token_env": "MINE"}, IsolationError, "no service answers: http://127.0.0.1:9"),
    ],
)
def test_services_that_cannot_be_used_are_refused(
    settings: dict[str, Any],
    error: type[Exception],
    said: str,
    tmp_path: Path,
    server: ThreadingHTTPServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINE", "secret")
    with pytest.raises(error, match=said):
        with session_of(tmp_path, **{"url": url(server), **settings}):
            pass


def test_a_service_must_have_the_language_and_nothing_is_needed_here(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "secret")
    config = tiny({"sandbox": {"url": url(server), "token_env": "MINE", "workers": 1}}).sandbox
    unit, bash = load("unit_tests").bind(), load("code").bind({"language": "bash"})
    found = open_sandbox(config, [unit, bash], Heard())
    assert found is not None
    assert found["services"] == {url(server): 2}
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(IsolationError, match=f"sandbox at {url(server)} has no bash; install"):
        open_sandbox(config, [bash], Heard())
    low_walls(monkeypatch)
    close_sandbox()
    assert open_sandbox(config, [unit], Heard()) == found, "the walls of this machine do not matter"


def test_without_a_service_a_language_needs_its_tool_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(IsolationError, match=f"needs {LANGUAGES['bash'].tool}, which is not installed here"):
        open_sandbox(tiny({"sandbox": {"workers": 1}}).sandbox, [load("code").bind({"language": "bash"})], Heard())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "localhost:80"}, "'localhost:80' is no http"),
        ({"url": []}, "names no service"),
        ({"min_level": 4}, "less than or equal to 3"),
        ({"cpu_s": 0}, "greater than 0"),
        ({"cpus": 1}, "unknown key 'sandbox.cpus'"),
    ],
)
def test_a_wrong_section_is_refused_at_load(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny({"sandbox": settings})


def test_a_run_may_go_on_elsewhere_but_not_with_other_limits() -> None:
    moved = {"min_level": 1, "workers": 3, "url": "http://a", "token_env": "T"}
    base, elsewhere, other = (recipe_fields(tiny({"sandbox": s}).of_stage("rl")) for s in ({}, moved, {"cpu_s": 1}))
    assert differences(base, elsewhere) == []
    assert differences(base, other) == ["sandbox.cpu_s was None, is 1.0"]
