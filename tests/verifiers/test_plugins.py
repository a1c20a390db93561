"""Verifiers from outside: a file named in a recipe, and an installed package's entry point."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from verizero.pipeline import registry
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.errors import ConfigError, UnknownName
from verizero.pipeline.scoring.score import bind_verifiers
from verizero.pipeline.types import Attempt, Prompt
from verizero.verifiers.base import load
from verizero.verifiers.layouts.base import layout_of, layouts

PLUGIN = '''
from pydantic import Field
from verizero.verifiers.base import Attempt, Verdict, VerifierParams, verifier
from verizero.verifiers.layouts.base import Layout, Suite

class Params(VerifierParams):
    times: int = Field(2, ge=1, le=9)

@verifier
def shouts(attempt: Attempt, params: Params) -> float:
    """Whether it ends in so many exclamation marks."""
    if attempt.response == "crash":
        raise ZeroDivisionError("oh")
    if attempt.response == "far out":
        return 3.0
    return float(attempt.response.endswith("!" * params.times))

@verifier
def plain(attempt):
    return attempt.response == attempt.reference

@verifier(name="many", batch=True)
def several(attempts: list, params: Params) -> list:
    if any(a.response == "crash" for a in attempts):
        raise ZeroDivisionError("oh")
    return [Verdict("graded", 1.0)] * (len(attempts) if attempts[0].response != "short" else 0)

def not_one(attempt):
    return True

def read(reference):
    return Suite("stdin", ({"input": reference["stdin"], "output": reference["stdout"]},))

streams = Layout("code", ("stdin", "stdout"), (), read)
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "checks.py").write_text(PLUGIN)
    return tmp_path


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with entry points, as an installer would leave it on the path."""
    (tmp_path / "shouting").mkdir()
    (tmp_path / "shouting" / "__init__.py").write_text(PLUGIN)
    info = tmp_path / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[verizero.verifiers]\nshouts = shouting:shouts\nnothing = shouting:not_one\nexact = shouting:plain\n"
        "[verizero.layouts]\nstreams = shouting:streams\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    layouts.cache_clear()
    yield tmp_path
    layouts.cache_clear()
    sys.modules.pop("shouting", None)


def score(verifier, response, reference=None, **params):
    said = verifier.bind(params).score([Attempt(response, reference)])[0]
    return said.score if said.status == "graded" else said.status


def test_a_file_is_enough(file):
    found = load(path="checks.py:shouts", base=file)
    assert score(found, "yes!!") == 1.0
    assert score(found, "yes!") == 0.0
    assert score(found, "yes!", times=1) == 1.0
    plain = load(path=f"{file}/checks.py:plain")
    assert score(plain, "a", "a") == 1.0
    assert plain.module == found.module != "verizero.verifiers.base", "also for a function without parameters"
    assert "exclamation" in (found.__doc__ or "")


def test_what_a_plugin_does_wrong_is_no_wrong_answer(file):
    found = load(path="checks.py:shouts", base=file)
    said = found.bind().score([Attempt(r, None) for r in ("crash", "ok!!", "far out")])
    assert [v.status for v in said] == ["verifier_error", "graded", "verifier_error"]
    assert "ZeroDivisionError: oh" in said[0].reason
    assert "outside [0, 1]" in said[2].reason
    short = load(path="checks.py:several", base=file).bind().score([Attempt("short", None)] * 2)
    assert [v.status for v in short] == ["verifier_error"] * 2
    assert re.search("0 .* 2 ", short[0].reason)
    mixed = load(path="checks.py:several", base=file).bind().score([Attempt(r, None) for r in ("a", "crash", "b")])
    assert [v.status for v in mixed] == ["graded", "verifier_error", "graded"]
    assert "ZeroDivisionError: oh" in mixed[1].reason


def test_parameters_are_validated_before_anything_runs(file):
    found = load(path="checks.py:shouts", base=file)
    with pytest.raises(ConfigError, match=r"times = 10: "):
        found.bind({"times": 10})
    with pytest.raises(ConfigError, match=r"no parameter 'time'; did you mean times"):
        found.bind({"time": 1})


def test_a_wrong_path_says_what_was_looked_for(file):
    (file / "broken.py").write_text("import no_such_thing")
    for path, named in (
        ("checks.py", "checks.py"),
        ("none.py:shouts", "none.py"),
        ("checks.py:shout", "'shout'"),
        ("checks.py:missing_one", "has no 'missing_one'"),
        ("broken.py:x", r"broken\.py.*ModuleNotFoundError"),
    ):
        with pytest.raises(ConfigError, match=named):
            load(path=path, base=file)
    for name, named in (("choise", "choice"), (None, r"name.*path")):
        with pytest.raises(ConfigError, match=named):
            load(name)


def test_an_entry_point_is_a_name_like_any_other(installed):
    assert "shouts" in registry.names("verifiers")
    assert layout_of({"stdin": "1", "stdout": "2"})[0] == "streams"
    assert score(load("shouts"), "yes!!") == 1.0
    with pytest.raises(UnknownName, match="shouts"):
        load("shout")
    with pytest.raises(UnknownName, match="nothing"):
        load("nothing")
    with pytest.raises(ConfigError, match="exact"):
        load("exact")


def test_rows_name_either_kind(file, installed):
    choice = VerifierChoice(path="checks.py:shouts", params={"times": 1})
    prompts = [Prompt("1", "q", choice.key, None), Prompt("2", "q", "shouts", None), Prompt("3", "q", "numeric", "4")]
    bound = bind_verifiers(prompts, {choice.key: choice}, file)
    said = [
        bound[p.verifier].score([Attempt(r, p.reference)])[0].score
        for p, r in zip(prompts, ("a!", "a!", "4"), strict=True)
    ]
    assert said == [1.0, 0.0, 1.0]


def test_every_file_here_is_a_verifier_of_its_own_name_and_in_the_guide():
    names = sorted(registry.names("verifiers"))
    for name in names:
        verifier = load(name)
        assert verifier.name == name
        assert verifier.__doc__, f"{name} does not say what it returns"
    guide = (Path(__file__).resolve().parents[2] / "docs" / "verifiers.md").read_text()
    table = guide.split("## The verifiers", 1)[1].split("###", 1)[0]
    assert sorted(line.split("`")[1] for line in table.splitlines() if line.startswith("| `")) == names
