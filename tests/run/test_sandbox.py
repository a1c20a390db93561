"""The sandbox in a whole run: opened before the policy is built, written down without its token, closed at the end."""

import json
from contextlib import contextmanager

import pytest

from tests.scoring.fakes import low_walls
from tests.stages.tiny import tiny
from verizero.pipeline.errors import IsolationError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run
from verizero.sandbox.settings import SandboxSettings, current

pytestmark = pytest.mark.usefixtures("default_sandbox")
CODE = [{"id": i, "question": f"{i}?", "answer": {"tests": [{"input": "", "output": str(i)}]}} for i in range(3)]


@contextmanager
def session_of(folder, rows, source, **settings):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"train": [{"file": "rows.jsonl", "verifier": "code", **source}], "evaluation": []}
    config = tiny({"stages": ["rl"], "sft": None, "data": data, "sandbox": settings})
    with open_run(config, folder, folder / "run", "auto", Progress()) as session:
        yield session


@pytest.mark.run
def test_a_run_writes_down_its_isolation_but_not_the_token(tmp_path, monkeypatch):
    monkeypatch.setenv("MINE", "secret")
    with session_of(tmp_path, CODE, {}, workers=1, cpu_s=0.5, token_env="MINE") as session:
        assert getattr(session.workers.graders.scorer.graders["code"], "params").limits().cpu_s == 0.5  # noqa: B009
        assert json.loads((tmp_path / "run" / "run.json").read_text())["isolation"] == session.run.isolation is not None
    assert current() == SandboxSettings()
    for file in ("run.json", "recipe.yaml"):
        assert "secret" not in (tmp_path / "run" / file).read_text()


ENVIRONMENT = {"id": 0, "question": "f", "answer": {"fn": "f", "tests": [{"args": [1], "expected": 1}]}}


@pytest.mark.parametrize(
    ("rows", "source"), [(CODE, {}), ([ENVIRONMENT], {"verifier": "environment", "environment": "repair"})]
)
def test_below_its_level_a_run_is_refused_before_a_policy_is_built(rows, source, tmp_path, monkeypatch):
    low_walls(monkeypatch)
    monkeypatch.setattr("verizero.pipeline.run.opening.load_policy", lambda *_: pytest.fail("too late"))
    with pytest.raises(IsolationError), session_of(tmp_path, rows, source, workers=1):
        pass
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
