"""`verizero rate`: the rates that were counted, rows that can be trained on, and a command that is repeated."""

import json
from dataclasses import replace

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.commands.rate import rate, rated_row
from verizero.pipeline.config.data import Source
from verizero.pipeline.data.prompts import read_prompts
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.loop import sampled_groups
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.episodes import bind_environments
from verizero.pipeline.scoring.score import bind_verifiers
from verizero.pipeline.types import Attempt, Group, Verdict

CONFIG = tiny({"stages": ["rl"], "sft": None})


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.run
def test_every_prompt_is_rated_once_however_often_it_is_broken_off(tmp_path, monkeypatch):
    monkeypatch.setattr(sampled_groups, "SAMPLED_AT_ONCE", 8)
    whole = rate(CONFIG, tmp_path, tmp_path / "whole.jsonl", 4, Progress())
    rated = rows(tmp_path / "whole.jsonl")
    assert len(rated) == len({r["id"] for r in rated}) == 30
    assert whole.rates == [r["pass_rate"] for r in rated]
    assert all(r["attempts"] == 4 and r["pass_rate"] * 4 == round(r["pass_rate"] * 4) for r in rated)

    content = (tmp_path / "whole.jsonl").read_bytes()
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(content[: len(content) // 2])
    rate(CONFIG, tmp_path, torn, 4, Progress())
    assert torn.read_bytes() == content

    source = Source.model_validate({"file": "whole.jsonl"})
    prompts, _ = read_prompts([source], 0, tmp_path)
    assert len(prompts) == 30


@pytest.mark.run
def test_what_graders_could_not_say_counts_for_nothing(tmp_path, monkeypatch):
    plain = sampled_groups.sample_groups

    def failing(*arguments):
        groups, tally = plain(*arguments)
        lost = Verdict("verifier_error", reason="gone")
        broken = [Group(g.prompt, tuple(replace(m, verdict=lost, reward=None) for m in g.members)) for g in groups[:3]]
        return [*broken, *groups[3:]], tally

    monkeypatch.setattr(sampled_groups, "sample_groups", failing)
    rated = rate(CONFIG, tmp_path, tmp_path / "out.jsonl", 2, Progress())
    assert rated.unrated == 3
    assert [r["pass_rate"] for r in rows(tmp_path / "out.jsonl")][:3] == [None] * 3
    assert "3 without a rate" in str(rated)


def test_a_file_of_something_else_is_refused(tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text('{"id": "stranger", "pass_rate": 1, "samples": 2}\n')
    for samples, error, named in (
        (2, DataError, "'stranger'"),
        (4, DataError, "line 1 .* 4 "),
        (0, ConfigError, "samples .* 0"),
    ):
        with pytest.raises(error, match=named):
            rate(CONFIG, tmp_path, out, samples, Progress())


def test_rated_rows_load_again_whatever_names_their_verifier_and_environment(tmp_path):
    """A function of a file, with parameters or without, and a name with parameters."""
    (tmp_path / "mine.py").write_text(
        "from verizero.pipeline.environments.guess import environment as again\n"
        "from verizero.verifiers.base import VerifierParams, verifier\n\n"
        "class P(VerifierParams):\n    wanted: str = 'a'\n\n"
        "@verifier\ndef mine(attempt, params: P):\n    return attempt.response == params.wanted\n"
    )
    row = {"id": "1", "question": "q", "answer": "4"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    choices = [
        ({"path": "mine.py:mine"}, "a"),
        ({"path": "mine.py:mine", "params": {"wanted": "b{"}}, "b{"),
        ({"name": "numeric", "params": {"abs_tol": 1}}, "5"),
        ("numeric", "4"),
    ]
    for choice, right in choices:
        source = Source.model_validate(
            {"file": "rows.jsonl", "verifier": choice, "environment": {"path": "mine.py:again", "params": {"tries": 2}}}
        )
        (prompt,), _ = read_prompts([source], 0, tmp_path)
        rated = rated_row(Group(prompt, ()), 0)
        (tmp_path / "rated.jsonl").write_text(json.dumps({**rated, "pass_rate": 0.5}) + "\n")
        again = Source.model_validate({"file": "rated.jsonl"})
        (loaded,), _ = read_prompts([again], 0, tmp_path)
        assert replace(loaded, row=None) == replace(prompt, row=None)
        bound = bind_verifiers([loaded], {}, tmp_path)[loaded.verifier]
        assert [v.score for v in bound.score([Attempt(right, "4"), Attempt("7", "4")])] == [1.0, 0.0]
        played = bind_environments([loaded], {}, tmp_path)[str(loaded.environment)]
        played.make(loaded, 0, 0).close()


def test_a_row_whose_verifier_cannot_be_read_is_named(tmp_path):
    for verifier, said in (("numeric{", "no JSON"), ("absent.py:f", "absent.py"), ("numerik{}", "numeric")):
        row = {"id": "1", "question": "q", "answer": "4", "verifier": verifier}
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
        with pytest.raises(DataError, match=said):
            bind_verifiers(read_prompts([Source(file="rows.jsonl")], 0, tmp_path)[0], {}, tmp_path)
